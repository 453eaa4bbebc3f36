"""The native window in C++, compiled at its first use."""
