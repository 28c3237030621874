"""Rollouts: which prompts are sampled, how their completions are sampled, and whether sampler and trainer agree."""
