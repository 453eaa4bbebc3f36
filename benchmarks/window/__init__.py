"""The window of launches: its checks, its launches, its simulator, programs on two cores."""
