"""Graph to graph: one file per pass, `recurra.passes.PASSES` is the order."""
