"""Graph to graph: one file per pass, `pipeline.PASSES` is the order."""
