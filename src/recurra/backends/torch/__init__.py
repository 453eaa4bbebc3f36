"""Regions as generated Torch code; the only package that imports torch."""
