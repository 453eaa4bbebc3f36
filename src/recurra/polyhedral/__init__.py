"""Exact sets and maps of integer points (isl), and the intervals that answer most questions."""
