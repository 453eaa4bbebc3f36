"""Regions as jitted functions; the only package of the compiler that imports jax."""
