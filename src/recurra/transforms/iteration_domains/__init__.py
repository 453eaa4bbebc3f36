"""Change the points at which equations run: peel, split, shrink and unroll loops, copy points."""
