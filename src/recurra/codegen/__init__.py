"""Schedule and plan to a program: regions that a backend compiles, and host code between them."""
