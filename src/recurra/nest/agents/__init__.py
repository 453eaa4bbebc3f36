"""Agents that learn to schedule nests; they need JAX to learn, and NumPy to act."""
