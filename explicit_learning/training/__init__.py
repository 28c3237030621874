"""Training on ranks: from a verified launch manifest to a trained adapter."""
