"""Tuned kernels beside NumPy, Torch, XLA, TVM and LLVM."""
