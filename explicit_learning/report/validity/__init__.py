"""The validity study: what the arms learn on the embedded digits, over seeds (``docs/validity.md``)."""
