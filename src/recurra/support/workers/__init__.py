"""Workers that answer requests, and are watched: who dies, or does not answer, is replaced."""
