"""Supervise workers that answer requests, and replace those that die or hang."""
