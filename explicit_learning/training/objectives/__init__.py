"""The losses that are added to GRPO, as functions of tensors, and the trainers that add them.

Everything that can be wrong about a loss (a sign, a normaliser, a token too many, a gradient that is not there) is in
functions without model, trainer or rank, so that it can be checked against numbers worked out by hand.
"""
