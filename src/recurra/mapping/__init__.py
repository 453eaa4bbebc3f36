"""Which uses of which tensors go to fast memory, when and where: game, solvers, importers."""
