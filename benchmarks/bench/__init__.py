"""Figures that must hold, each a ratio measured in one run: `make bench`."""
