"""Turn dims that impose no order into axes of arrays."""
