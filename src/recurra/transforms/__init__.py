"""The passes: each rewrites one graph into another."""
