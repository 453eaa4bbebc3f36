"""Points of a loop that run outside of it: before it, after it, by turns, or not at all."""
