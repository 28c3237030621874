"""Arms side by side: what they learned against sampled tokens, and what held-out rows say about their differences."""
