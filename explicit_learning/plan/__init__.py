"""From a person's draft to a frozen plan, and from a frozen plan to typed, checked values."""
