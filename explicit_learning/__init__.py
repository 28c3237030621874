"""Explicit Learning: exact, checkable post-training runs of vision-language models.

The package is laid out in the order in which a plan flows through it (see ``docs/architecture.md``). Importing it
imports nothing heavy: everything that checks and proves works without torch.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
