"""The state of a rank: adapters, digests, random streams, checkpoints and the check of a resume."""
