"""Checkpoints: written whole, chosen only when complete, restored in every part."""
