"""Graph to graph: one file per pass, `compiler/pipeline.py` has their order."""
