"""Data: answers, rows, prompts, images, and what makes them trustworthy. Nothing here imports torch."""
