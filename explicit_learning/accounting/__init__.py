"""Per-rank, append-only records of what was sampled and how it was scored."""
