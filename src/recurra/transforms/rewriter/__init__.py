"""Apply rewrite rules until none applies, and count the rewrites."""
