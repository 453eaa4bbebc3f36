"""Simplify, share equal equations, and remove what nobody reads."""
