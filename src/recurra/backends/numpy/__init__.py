"""Regions as Python source that calls NumPy."""
