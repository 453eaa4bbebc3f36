"""Real models as memory-mapping problems: plain JAX, written for what XLA makes of them."""
