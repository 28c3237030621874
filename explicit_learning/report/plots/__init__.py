"""Plots: drawn once from a table, and written as a part of a page, as SVG, as PNG and as CSV."""
