"""Contact sheets: groups of a dataset as a person sees them, views side by side, as a page or as a picture."""
