"""Predict the peak memory of a program by running it without numbers."""
