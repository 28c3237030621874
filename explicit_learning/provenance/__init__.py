"""What a run writes about itself, and the rules under which it may call itself complete."""
