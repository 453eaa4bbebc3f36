"""Shuffled reads: gathers composed, and rows that the host takes."""
