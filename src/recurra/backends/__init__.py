"""Backends: the only imports of jax and torch, one package each."""
