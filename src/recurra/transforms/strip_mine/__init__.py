"""Loops and ranges in tiles of static size."""
