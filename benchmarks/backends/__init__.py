"""The same REINFORCE on PyTorch, with rows that the data end, and with checkpoints."""
