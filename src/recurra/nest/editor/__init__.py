"""Edit nests in a terminal or a browser; every step is compiled, checked and measured."""
