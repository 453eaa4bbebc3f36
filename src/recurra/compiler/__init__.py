"""The pipeline from equations to a program: passes, options, cache."""
