"""Facts about graphs of values."""
