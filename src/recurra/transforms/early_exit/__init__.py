"""Bounds that the data set (`rc.until`): rows that end, masks past the end, when to ask."""
