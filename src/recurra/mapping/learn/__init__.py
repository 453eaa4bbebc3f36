"""Train agents that play the mapping game: networks, planning, replay, acting."""
