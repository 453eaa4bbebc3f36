"""Rules that replace equations, run to a fixpoint, and how many may be applied."""
