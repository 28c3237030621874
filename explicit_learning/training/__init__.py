"""What runs on ranks. Everything below may import torch; nothing above may import this package."""
