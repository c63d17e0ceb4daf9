"""Loop nests for the tests of this folder, and strategies that draw random ones."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from staxlab.polyhedral import LoopNest, loop_nest

STENCIL = """
for i in range(1, 6):
    for j in range(1, 7):
        w[i, j] = w[i - 1, j] + w[i, j - 1] + w[i - 1, j + 1]
"""

#: Nests of every kind with closed sizes, small enough to be run in all orders.
WRITTEN = {
    "stencil": STENCIL,
    "in place": "for i in range(1, 9):\n    w[i] = w[i - 1] + w[i + 1]",
    "reversed distance": "for i in range(1, 5):\n    for j in range(4):\n        w[i, j] = w[i - 1, j + 1]",
    "sum of rows": "for i in range(4):\n    for j in range(5):\n        s[i] += x[i, j]",
    "sum of all": "for i in range(3):\n    for j in range(4):\n        s += x[i, j]",
    "triangle": "for i in range(5):\n    for j in range(i + 1):\n        a[i, j] = a[i - 2, j] + a[j, i]",
    "triangular sums": "for i in range(5):\n    for j in range(i):\n        x[i] = x[i] - x[j]",
    "not uniform": "for i in range(12):\n    y[2 * i] = y[2 * i + 1] + y[3 * i]",
    "parity": "for i in range(9):\n    y[2 * i] = y[2 * i + 1]",
    "linear address": """
for i in range(5):
    for j in range(4):
        w[4 * i + j + 4] = w[4 * i + j] + w[4 * i + j + 6]
""",
    "two statements": """
for t in range(4):
    for i in range(1, 6):
        a[i] = b[i - 1] + b[i + 1]
        b[i] = a[i]
""",
    "three loops": """
for t in range(1, 4):
    for i in range(1, 4):
        for j in range(1, 4):
            u[t, i, j] = u[t - 1, i - 1, j] + u[t - 1, i + 1, j] + u[t - 1, i, j + 1] + u[t, i, j - 1]
""",
    "pointwise": "for i in range(4):\n    for j in range(4):\n        y[i, j] = x[j, i] * 2",
    "transposed in place": "for i in range(5):\n    for j in range(5):\n        x[i, j] = x[j, i]",
}  # fmt: skip


@st.composite
def uniform_nests(draw: st.DrawFn, depths: tuple[int, ...] = (1, 2, 3)) -> LoopNest:
    """``w[x] = w[x + a] + w[x + b]...`` over a box or a triangle."""
    depth = draw(st.sampled_from(depths))
    extent = {1: 8, 2: 5, 3: 4}[depth]
    names = "ijk"[:depth]
    lines = []
    for k, name in enumerate(names):
        bound = str(draw(st.integers(2, extent)))
        if k and draw(st.integers(0, 3)) == 0:
            bound = f"{names[k - 1]} + {draw(st.integers(1, 2))}"
        lines.append("    " * k + f"for {name} in range({bound}):")
    reads = []
    for _ in range(draw(st.integers(1, 3))):
        shift = [draw(st.integers(-2, 2)) for _ in names]
        reads.append("w[" + ", ".join(f"{name} + {s}" for name, s in zip(names, shift, strict=True)) + "]")
    lines.append("    " * depth + f"w[{', '.join(names)}] = {' + '.join(reads)}")
    return loop_nest("\n".join(lines))


@st.composite
def affine_nests(draw: st.DrawFn) -> LoopNest:
    """One or two statements whose subscripts are any sums of the loop variables."""
    depth = draw(st.sampled_from((1, 2)))
    names = "ij"[:depth]
    lines = ["    " * k + f"for {name} in range({draw(st.integers(2, 5))}):" for k, name in enumerate(names)]

    def access() -> str:
        factors = [draw(st.integers(-1, 2)) for _ in names]
        terms = [f"{f} * {name}" for f, name in zip(factors, names, strict=True)]
        return f"{draw(st.sampled_from('wv'))}[{' + '.join(terms)} + {draw(st.integers(-2, 2))}]"

    for _ in range(draw(st.integers(1, 2))):
        lines.append("    " * depth + f"{access()} = {access()} + {access()}")
    return loop_nest("\n".join(lines))


@st.composite
def open_nests(draw: st.DrawFn) -> LoopNest:
    """One or two loops up to sizes N and M that are left open, also triangles."""
    depth = draw(st.sampled_from((1, 2)))
    names = "ij"[:depth]
    lines = []
    for k, name in enumerate(names):
        upper = draw(st.sampled_from(["N", "M", "N - 1"] + (["i + 1", "N - i"] if k else [])))
        lower = draw(st.sampled_from(["0", "1"] + (["i"] if k else [])))
        lines.append("    " * k + f"for {name} in range({lower}, {upper}):")

    def access() -> str:
        terms = [f"{draw(st.integers(-1, 2))} * {name}" for name in names]
        shift = draw(st.sampled_from(["", "", "", " + N"]))
        return f"w[{' + '.join(terms)}{shift} + {draw(st.integers(-2, 2))}]"

    for _ in range(draw(st.integers(1, 2))):
        lines.append("    " * depth + f"{access()} = {access()} + {access()}")
    return loop_nest("\n".join(lines))


def with_all_sizes(nest: LoopNest, most: int) -> list[LoopNest]:
    """The nest at all small sizes."""
    names = [p.name for p in nest.parameters]
    every = itertools.product(range(1, most + 1), repeat=len(names))
    return [nest.with_sizes(**dict(zip(names, sizes, strict=True))) for sizes in every]


def unimodular(depth: int) -> st.SearchStrategy:
    """Matrices of determinant 1 or -1: products of interchanges, reversals and skews."""
    from staxlab.polyhedral.integers import identity, multiply
    from staxlab.polyhedral.legality import interchange_matrix, reversal_matrix, skewing_matrix

    loops = st.integers(0, depth - 1)
    pieces = [loops.map(lambda k: reversal_matrix(depth, k))]
    if depth > 1:
        pairs = st.tuples(loops, loops).filter(lambda p: p[0] != p[1])
        pieces.append(pairs.map(lambda p: interchange_matrix(depth, *p)))
        pieces.append(
            st.tuples(pairs, st.integers(-2, 2)).map(lambda p: skewing_matrix(depth, *p[0], factor=p[1]))
        )  # fmt: skip

    def product(parts: list) -> tuple:
        total = identity(depth)
        for part in parts:
            total = multiply(part, total)
        return total

    return st.lists(st.one_of(*pieces), max_size=4).map(product)
