"""What is in a dataset, counted as it is read: rows, answers, sizes, lengths, operators, and a sample of groups."""
