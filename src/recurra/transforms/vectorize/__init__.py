"""Dims that order nothing become axes: which of them, and how."""
