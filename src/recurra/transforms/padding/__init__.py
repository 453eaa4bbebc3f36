"""Axes whose length changes with a dim, at one static length, and masks where they matter."""
