"""A run as one file: written, and read without unpacking it."""
