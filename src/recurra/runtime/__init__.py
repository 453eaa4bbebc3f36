"""Runtime: compiled programs as they are run and shown."""
