"""Run regions as generated PyTorch source; only this package of the compiler imports Torch."""
