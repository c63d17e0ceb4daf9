"""Section 7.7: loop nests as sets of integer points, and which orders of their iterations are legal.

>>> from staxlab.polyhedral import dependences, interchange, loop_nest, make_permutable
>>> nest = loop_nest('''
... for i in range(1, N):
...     for j in range(1, N - 1):
...         w[i, j] = w[i - 1, j] + w[i, j - 1] + w[i - 1, j + 1]
... ''', N=6)
>>> dependences(nest).distances
((0, 1), (1, -1), (1, 0))
>>> print(interchange(dependences(nest), "i", "j").reason)
distance (1, -1) becomes (-1, 1), which is not lexicographically positive
>>> make_permutable(dependences(nest)).rows
((1, 0), (1, 1))

===============  =====================================================================================================
module           what it knows
===============  =====================================================================================================
``integers``     lattices: Hermite form, equations in integers, unimodular matrices
``polyhedron``   sets of integer points: emptiness, points, projections
``nests``        a loop nest: iterations, and which elements they touch; running it in any order
``written``      nests written down as Python text
``extract``      nests of the compiler's own nodes; the legal orders of their loops
``dependences``  distance vectors
``legality``     Theorems 7.2 and 7.3, Proposition 7.3: interchange, reversal, skewing, tiling, parallel loops, fusion
``unimodular``   the search for a transformation that makes a band fully permutable
``scan``         the transformed nest as a program
``linear``       linear programs in fractions, and the lemma of Farkas (Lemma 7.1)
``schedules``    one-dimensional affine schedules, or the proof that there is none (Proposition 7.5)
===============  =====================================================================================================

All of it is exact arithmetic on whole numbers and fractions. Nothing here is imported by ``import staxlab``.
"""

from __future__ import annotations

from .dependences import Dependence, Dependences, dependences
from .extract import disjoint_loops, legal_orders, loop_order, nest_of, row_fusion
from .legality import (
    FusionVerdict,
    Verdict,
    fully_permutable,
    fusion,
    interchange,
    parallel_loops,
    permutation,
    reversal,
    skewing,
    tiling,
    transformation,
)
from .nests import Access, LoopNest, NestStatement, tile_order
from .polyhedron import Constraint, Polyhedron
from .scan import TransformedNest, transformed
from .schedules import AffineSchedule, NoSchedule, affine_schedule, check_schedule
from .unimodular import Transformation, make_permutable, transform
from .written import loop_nest, loop_nests

__all__ = [
    "Access",
    "AffineSchedule",
    "Constraint",
    "Dependence",
    "Dependences",
    "FusionVerdict",
    "LoopNest",
    "NestStatement",
    "NoSchedule",
    "Polyhedron",
    "Transformation",
    "TransformedNest",
    "Verdict",
    "affine_schedule",
    "check_schedule",
    "dependences",
    "disjoint_loops",
    "fully_permutable",
    "fusion",
    "interchange",
    "legal_orders",
    "loop_nest",
    "loop_nests",
    "loop_order",
    "make_permutable",
    "nest_of",
    "parallel_loops",
    "permutation",
    "reversal",
    "row_fusion",
    "skewing",
    "tile_order",
    "tiling",
    "transform",
    "transformation",
    "transformed",
]
