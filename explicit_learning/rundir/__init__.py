"""Every file of a run directory: names, typed documents, and who owns the folder."""
