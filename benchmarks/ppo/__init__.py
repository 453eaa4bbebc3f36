"""PPO on a trivial environment: the bound of hand-written programs, and the schemes of peers."""
