"""What a model answers on held-out questions, per relation."""
