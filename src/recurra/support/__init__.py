"""What knows nothing of programs: laws, files."""
