"""A live look at a run: what its files say now, as a page for a terminal."""
