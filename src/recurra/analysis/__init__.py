"""Prove facts about graphs: safety, demanded points, cycles."""
