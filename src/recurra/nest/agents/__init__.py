"""Train agents that schedule nests: they learn with JAX and act with NumPy."""
