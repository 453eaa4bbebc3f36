"""Turn reductions over growing ranges into scans: running sums, online softmax."""
