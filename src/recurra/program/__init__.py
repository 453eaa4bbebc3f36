"""Schedule and plan to a program: regions that a backend compiles, and the host code between them."""
