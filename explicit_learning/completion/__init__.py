"""What a finished run must show, and the records that say so: recount, rules, marker, card."""
