"""Compose shuffled reads into one gather, or let the host gather rows."""
