"""From a draft to a frozen plan: every default written out, every file hashed."""
