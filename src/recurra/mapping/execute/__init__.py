"""Mappings run for real: from RAM and a file of a disk, or from a GPU's memory and pinned RAM."""
