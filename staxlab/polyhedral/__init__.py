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
``extract``      nests of the compiler's own nodes
``orders``       the legal orders of a node's loops, as the code generator asks for them
``distances``    dependences and their distance vectors
``legality``     Theorems 7.2 and 7.3, Proposition 7.3: interchange, reversal, skewing, tiling, parallel loops, fusion
``unimodular``   the search for a transformation that makes a band fully permutable
``scan``         the transformed nest as a program
``linear``       linear programs in fractions, and the lemma of Farkas (Lemma 7.1)
``schedules``    one-dimensional affine schedules, or the proof that there is none (Proposition 7.5)
``grid``         iterations as a grid of words
===============  =====================================================================================================

All of it is exact arithmetic on whole numbers and fractions. Modules are imported when a name of theirs is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "distances": "Dependence Dependences dependences",
    "extract": "nest_of row_fusion",
    "orders": "disjoint_loops legal_orders loop_order",
    "legality": "FusionVerdict Verdict fully_permutable fusion interchange parallel_loops permutation reversal "
    "skewing tiling transformation",
    "nests": "Access LoopNest NestStatement tile_order",
    "polyhedron": "Constraint Polyhedron",
    "scan": "TransformedNest transformed",
    "schedules": "AffineSchedule NoSchedule affine_schedule check_schedule",
    "unimodular": "Transformation make_permutable transform",
    "written": "loop_nest loop_nests",
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
