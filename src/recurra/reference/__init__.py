"""The oracle: an interpreter of graphs, and equivalence of two graphs."""
