"""Split loops and growing ranges into tiles of static size."""
