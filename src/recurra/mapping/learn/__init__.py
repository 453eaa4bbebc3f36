"""Agents that learn the game: networks, planning, replay, acting; needs `recurra[mapping-learn]`."""
