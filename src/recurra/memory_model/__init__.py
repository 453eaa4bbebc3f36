"""What a program takes of memory, before it runs: its run with shapes in place of numbers."""
