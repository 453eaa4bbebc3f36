"""Equations: expressions, types, ops, graphs, their text, and what makes them legal."""
