"""Writes the samples of this folder, whose answers are known: `python3 make.py`.

P is a standard Gaussian of two coordinates; Q has mean (1, 0) and standard deviations 1 and 2: KL(P||Q) = 0.818.
X is a standard Gaussian of two coordinates, and Y has correlation 0.8 with the first of them: I(X; Y) = 0.511.
"""

import random
from pathlib import Path

ROWS = 200
rng = random.Random(1)


def normals(count):
    return [rng.gauss(0.0, 1.0) for _ in range(count)]


def write(name, header, rows):
    lines = [header] + [",".join(f"{x:.4f}" for x in row) for row in rows]
    Path(__file__).with_name(name).write_text("\n".join(lines) + "\n")


write("p.csv", "a,b", [normals(2) for _ in range(ROWS)])
write("q.csv", "a,b", [(1.0 + a, 2.0 * b) for a, b in (normals(2) for _ in range(ROWS))])
x = [normals(2) for _ in range(ROWS)]
write("x.csv", "x1,x2", x)
write("y.csv", "y", [(0.8 * row[0] + 0.6 * rng.gauss(0.0, 1.0),) for row in x])
