"""Recurra: deep-learning programs as recurrence equations, compiled to a few large programs."""
