"""Skew two-dimensional tables so that their diagonals run at once."""
