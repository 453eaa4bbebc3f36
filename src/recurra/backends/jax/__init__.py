"""Run regions as jitted functions; only this package of the compiler imports JAX."""
