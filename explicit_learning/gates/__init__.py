"""What is checked before anything is trained. Each gate returns a list of faults; none imports torch."""
