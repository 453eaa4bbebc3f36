"""Lower bounds that the data set (`rc.until`): row ends, masks, polling."""
