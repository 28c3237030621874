"""Greedy evaluation on the frozen evaluation rows."""
