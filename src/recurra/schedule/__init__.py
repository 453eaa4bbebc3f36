"""Graph to schedule: which loops, in which direction, how far shifted, in what order."""
