"""Move points out of a loop: peel them, unroll it by periods, shrink its range."""
