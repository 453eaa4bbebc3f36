"""The backends: JAX, NumPy and PyTorch run regions, one package each."""
