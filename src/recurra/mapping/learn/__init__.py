"""Agents that learn the game: networks, planning, replay, acting."""
