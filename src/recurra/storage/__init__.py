"""Schedule to plan: what is a loop's value, what is a store, how long each store is."""
