"""Stores of which only some points are in memory: pages, tiers, and who moves them."""
