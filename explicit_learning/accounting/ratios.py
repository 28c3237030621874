"""Metrics that say how a step's completions were scored: trainers log them, and traces hold the rows behind them."""

from __future__ import annotations

__all__ = ["MALFORMED_RATIO", "RIGHT_RATIO", "TRUNCATED_RATIO"]

# Each is a share of the completions that were sampled since the row before in the log, over all ranks.
MALFORMED_RATIO = "completions/malformed_ratio"
TRUNCATED_RATIO = "completions/truncated_ratio"
RIGHT_RATIO = "completions/right_ratio"
