"""XLA's scheduled HLO modules: what runs in which order, and which values it reads and writes."""
