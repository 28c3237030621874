"""Reading strictly and writing whole: every other part of the package uses it."""
