"""Run regions as generated NumPy source."""
