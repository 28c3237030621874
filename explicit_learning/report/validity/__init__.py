"""The validity study: what the arms learn on the embedded digits, over seeds, and how it is told (``docs/validity.md``)."""
