"""Reductions over growing ranges as scans: incremental sums, running softmax."""
