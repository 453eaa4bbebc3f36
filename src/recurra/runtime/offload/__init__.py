"""Keep some points of a store in memory and the others on a host or a disk."""
