"""What a run leaves behind: its folder, its checkpoints, its page, its progress line."""
