"""Arms × seeds on one dataset: the comparison that the program exists for, run as a whole."""
