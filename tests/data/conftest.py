"""Settings for property-based tests: repeatable, and without a deadline, because CI machines pause."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")
