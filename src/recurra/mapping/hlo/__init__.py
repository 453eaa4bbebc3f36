"""Turn XLA's scheduled HLO modules into memory-mapping problems."""
