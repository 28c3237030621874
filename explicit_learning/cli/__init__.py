"""One module per command: parsing and printing, nothing else. Nothing imports this package."""
