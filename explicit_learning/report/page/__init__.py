"""The frame of every page: one HTML file that fetches nothing, in both themes, on a phone and in print."""
