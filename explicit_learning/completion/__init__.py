"""A run directory before the ranks (what to launch) and after them: recount, rules, marker, card, end of the launch."""
