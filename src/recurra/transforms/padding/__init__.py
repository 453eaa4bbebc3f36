"""Give axes of varying length one static length, and mask what lies past the end."""
