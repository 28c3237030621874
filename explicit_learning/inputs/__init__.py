"""What a plan names (model, adapter, prompt, data, code), resolved and checked."""
