"""REINFORCE on CartPole: our program beside versions written by hand in JAX and PyTorch."""
