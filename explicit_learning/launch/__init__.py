"""From a checked plan to running ranks and back to one exit code."""
