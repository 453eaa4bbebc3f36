"""Show a run: its folder, charts, HTML page and progress line."""
