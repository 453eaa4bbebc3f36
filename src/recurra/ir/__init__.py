"""The data: expressions, types, equations, statements, and their text form."""
