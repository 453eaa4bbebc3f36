"""Edit distance: a dynamic program over two dims; the cells of a diagonal are made together.

python examples/edit_distance.py
"""

import recurra as rc

ctx = rc.Context(num_dims=3)
with ctx as ((b, B), (i, I), (j, J)):
    x = (rc.uniform((b, i)) * 4.0).cast("i32")  # words over four letters
    y = (rc.uniform((b, j)) * 4.0).cast("i32")

    d = rc.like(rc.f32, domain=(b, i, j))  # between x[0..i] and y[0..j]
    change = (x != y).cast("f32")
    d[b, 0, 0] = change
    d[b, 0, j] = rc.minimum(d[b, 0, j - 1] + 1.0, change + j)
    d[b, i, 0] = rc.minimum(d[b, i - 1, 0] + 1.0, change + i)
    skip = rc.minimum(d[b, i - 1, j], d[b, i, j - 1]) + 1.0
    d[b, i, j] = rc.minimum(skip, d[b, i - 1, j - 1] + change)
    rc.output(x=x, y=y, distance=d[b, I - 1, J - 1])

if __name__ == "__main__":
    program = ctx.compile({B: 8, I: 400, J: 500})
    print(program.run()["distance"][:10])
    print(program)
    for row in program.store_rows:  # three diagonals of the table, not the table
        print(row["store"], row["slots"], row["bytes"])
