"""Read XLA's scheduled HLO modules: their order and the values they touch."""
