"""Order statements into loops with directions and shifts."""
