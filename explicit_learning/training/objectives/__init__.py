"""The losses that are added to GRPO, as functions of tensors, and the trainers that add them.

Everything that can be wrong about a loss (a sign, a normaliser, a token too many, a missing gradient) is in functions
without model, trainer or rank, so that tests can compare it with numbers worked out by hand.
"""
