"""Statistics of paired comparisons: pure functions from numbers to numbers."""
