"""Prices of equations and of bytes."""
