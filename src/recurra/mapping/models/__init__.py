"""Real models as memory-mapping problems, written in plain JAX."""
