"""Exact sets and maps of integer points (isl), and faster intervals."""
