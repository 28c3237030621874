"""A model's answers to held-out questions, per relation."""
