"""From equations to a program: the list of passes, what runs them, and what they may be told."""
