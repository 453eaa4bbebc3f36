"""Large observations under a budget of memory: our programs beside the schemes of peers."""
