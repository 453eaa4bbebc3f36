"""Send PyTorch's operators through a window, and record traces of its programs."""
