"""What a recorded trace tells: the same plans again, a report, and what another policy would have done."""
