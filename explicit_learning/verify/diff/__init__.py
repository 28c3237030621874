"""What differs in two runs, and from which step on."""
