"""What a finished run must show, and the records of it: recount, rules, marker, card, the end of a launch."""
