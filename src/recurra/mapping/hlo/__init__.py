"""XLA's scheduled HLO modules → memory-mapping problems."""
