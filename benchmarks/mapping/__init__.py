"""Memory mapping: the default solver beside the others, on real models."""
