"""Run a mapping for real: between RAM and a file, or a GPU and pinned RAM."""
