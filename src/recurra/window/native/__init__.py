"""The native window: C++, compiled once where a compiler and nanobind are."""
