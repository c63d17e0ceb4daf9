"""Integer linear algebra, exact: Hermite form, equations in integers, unimodular matrices.

Iterations of a loop are integers, so the linear algebra of loops is that of lattices. Two tools carry it. A matrix is
*unimodular* if it is integer and its determinant is 1 or -1; then its inverse is integer as well, and it maps the
integer points of space onto the integer points, each once: exactly the matrices that reorder iterations and lose none.
And *column operations* (exchange two columns, negate one, add a multiple of one to another) are the unimodular matrices
multiplied from the right; with them every matrix takes its Hermite form, a staircase, from which the integer solutions
of a system of equations are read off: one solution, and a basis of all differences between solutions.

Matrices are tuples of rows, vectors tuples, and all numbers Python integers, which do not overflow.

Source: Schrijver, A. (1986). *Theory of Linear and Integer Programming*, chapters 4 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import ScheduleError

Vector = tuple[int, ...]
Matrix = tuple[Vector, ...]


def matrix(rows: Iterable[Iterable[int]]) -> Matrix:
    """Rows of whole numbers as a Matrix. ScheduleError unless all are whole and the rows equally long."""
    found = []
    for row in rows:
        numbers = tuple(row)
        if any(int(entry) != entry for entry in numbers):
            raise ScheduleError(f"a matrix of loops has whole entries, not {numbers}")
        found.append(tuple(int(entry) for entry in numbers))
    if len({len(row) for row in found}) > 1:
        raise ScheduleError("the rows of a matrix are equally long")
    return tuple(found)


def identity(n: int) -> Matrix:
    return tuple(tuple(int(i == j) for j in range(n)) for i in range(n))


def transpose(rows: Sequence[Sequence[int]]) -> Matrix:
    return tuple(zip(*rows, strict=True))


def dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def apply(rows: Matrix, vector: Sequence[int]) -> Vector:
    """The matrix times a column vector."""
    return tuple(dot(row, vector) for row in rows)


def multiply(a: Matrix, b: Matrix) -> Matrix:
    columns = transpose(b)
    return tuple(tuple(dot(row, column) for column in columns) for row in a)


def lexicographic_sign(vector: Iterable[int]) -> int:
    """1, 0 or -1: the sign of the first entry that is not 0. Positive means "later in the order of the loops"."""
    first = next((entry for entry in vector if entry), 0)
    return (first > 0) - (first < 0)


def determinant(rows: Matrix) -> int:
    """By Bareiss' elimination, whose divisions all come out even. O(n^3) operations."""
    work = [list(row) for row in rows]
    n, sign, before = len(work), 1, 1
    for k in range(n - 1):
        pivot = next((i for i in range(k, n) if work[i][k]), None)
        if pivot is None:
            return 0
        if pivot != k:
            work[k], work[pivot], sign = work[pivot], work[k], -sign
        for i in range(k + 1, n):
            for j in range(k + 1, n):
                work[i][j] = (work[i][j] * work[k][k] - work[i][k] * work[k][j]) // before
        before = work[k][k]
    return sign * work[-1][-1] if n else 1


def is_unimodular(rows: Matrix) -> bool:
    """Whether a square integer matrix has determinant 1 or -1."""
    return all(len(row) == len(rows) for row in rows) and abs(determinant(rows)) == 1


def inverse(rows: Matrix) -> Matrix:
    """The integer inverse of a unimodular matrix. ScheduleError for any other: iterations would be lost.

    Column operations turn a unimodular matrix into the identity, so the matrix that records them is the inverse.
    """
    if not is_unimodular(rows):
        raise ScheduleError(
            f"the determinant of {text(rows)} is not 1 or -1", remedy="a reordering of iterations is unimodular"
        )
    return hermite(rows).operations


@dataclass(frozen=True)
class Hermite:
    """``matrix * operations = form``: ``operations`` is unimodular and ``form`` a staircase, ``pivots[k]`` being the
    row in which column k begins. A pivot is positive, what stands left of it lies in [0, pivot), and columns after the
    last pivot are zero."""

    form: Matrix
    operations: Matrix
    pivots: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.pivots)


def hermite(rows: Matrix, columns: int | None = None) -> Hermite:
    """The column Hermite normal form. ``columns`` is the width where there are no rows. O(rows columns^2)
    operations."""
    width = len(rows[0]) if rows else (columns or 0)
    form = [list(row) for row in rows]
    operations = [list(row) for row in identity(width)]

    def combine(to: int, of: int, times: int) -> None:
        for row in (*form, *operations):
            row[to] -= times * row[of]

    def exchange(one: int, other: int) -> None:
        for row in (*form, *operations):
            row[one], row[other] = row[other], row[one]

    pivots: list[int] = []
    for i, row in enumerate(form):
        here = len(pivots)
        if here == width:
            break
        # Euclid's algorithm among the entries of this row: the smallest divides the others until one is left.
        while (left := [j for j in range(here, width) if row[j]]) and len(left) > 1:
            smallest = min(left, key=lambda j, row=row: abs(row[j]))
            for j in left:
                if j != smallest:
                    combine(j, smallest, row[j] // row[smallest])
        if not left:
            continue
        exchange(here, left[0])
        if row[here] < 0:
            for line in (*form, *operations):
                line[here] = -line[here]
        for j in range(here):
            combine(j, here, row[j] // row[here])
        pivots.append(i)
    return Hermite(matrix(form), matrix(operations), tuple(pivots))


@dataclass(frozen=True)
class Solutions:
    """All integer solutions of a system of equations: ``particular`` plus integer combinations of ``basis``."""

    particular: Vector
    basis: tuple[Vector, ...]


def solve(rows: Matrix, right: Sequence[int], unknowns: int) -> Solutions | None:
    """The integer solutions of ``rows * x = right``, or None if there are none (no rational one, or none that is
    whole).

    The basis is a staircase: its vectors begin at increasing places, so that the first unknowns are decided by the
    first multipliers, which is what enumerating solutions in lexicographic order needs.
    """
    found = hermite(rows, unknowns)
    multipliers = [0] * unknowns
    for i, row in enumerate(found.form):
        rest = right[i] - sum(row[k] * multipliers[k] for k in range(found.rank) if found.pivots[k] < i)
        if i in found.pivots:
            k = found.pivots.index(i)
            if rest % row[k]:
                return None
            multipliers[k] = rest // row[k]
        elif rest:
            return None
    particular = apply(found.operations, multipliers) if unknowns else ()
    free = tuple(tuple(row[found.rank :]) for row in found.operations)
    if not unknowns or found.rank == unknowns:
        return Solutions(particular, ())
    stairs = hermite(free).form
    return Solutions(particular, transpose(stairs))


def primitive(vector: Sequence[int]) -> Vector:
    """The vector divided by the greatest common divisor of its entries."""
    divisor = math.gcd(*vector) or 1
    return tuple(entry // divisor for entry in vector)


def text(rows: Matrix | Vector) -> str:
    """``[[1, 0], [1, 1]]`` or ``(1, -1)``."""
    if rows and isinstance(rows[0], tuple):
        return "[" + ", ".join("[" + ", ".join(map(str, row)) + "]" for row in rows) + "]"
    return "(" + ", ".join(map(str, rows)) + ("," if len(rows) == 1 else "") + ")"
