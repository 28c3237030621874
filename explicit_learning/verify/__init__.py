"""Readers of finished runs: proof that one is whole, how two differ, and an archive of one."""
