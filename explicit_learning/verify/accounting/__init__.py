"""What a run's ledgers and traces must say, computed again from their rows."""
