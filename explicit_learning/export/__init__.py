"""What is taken out of a complete run: its adapter, or the weights of base model and adapter merged."""
