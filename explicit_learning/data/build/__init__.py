"""Makes a dataset from a person's own images, questions, answers and evidence: ``el data build``."""
