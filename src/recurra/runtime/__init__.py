"""Run compiled programs, and show what they are made of."""
