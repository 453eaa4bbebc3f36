"""Our programs beside hand-written peers: checked first, then timed in interleaved pairs."""
