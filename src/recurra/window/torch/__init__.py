"""The door to PyTorch: traces of its programs."""
