"""Prices of work and memory, and the thresholds of every choice."""
