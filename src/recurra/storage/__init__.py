"""Decide where values are stored, and how long each store is."""
