"""Learning beside CleanRL's scheme: returns of episodes over steps, of several seeds."""
