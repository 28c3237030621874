"""Tables and pages about finished runs, for people."""
