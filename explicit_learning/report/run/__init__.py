"""One page about one run or several: what they are, whether they verify, their curves, outcomes and completions."""
