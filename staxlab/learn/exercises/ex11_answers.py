"""Answers to Exercise 11: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex11 import Variant


def flat_stride(shape, strides):
    stride = expected = None
    for extent, step in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1:
            if stride is None:
                stride = step
            elif step != expected:
                return None
            expected = extent * step
    return stride


def moved(order, d):
    return order.index(d)


PROOF = """Cutting dimension d is the map i -> D i + a e_d, where D is diagonal with the step k at d and 1 elsewhere;
permuting is i -> P i. Cut first and permute the result: the subscript i of the final view is first taken to P i and
then to D P i + a e_d. Permute first and cut dimension d', where P e_d' = e_d: i -> P (D' i + a e_d') with the step k at
d'. Now P D' = D P, because P takes the unit vector e_d' to e_d, so scaling there before is scaling here after, and
P a e_d' = a e_d. Both are the same map A i + c, and by Proposition 6.2 the layout A^T t, o + t^T c depends on nothing
but the map and (t, o). So they have the same strides and offset, whatever the layout."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex11_runs import flat_stride as truth
    from .ex11_runs import layout, layout_through, sliced_and_turned, turned

    shape, strides = (variant.rows, variant.columns), (variant.columns, 1)
    view = sliced_and_turned(shape, variant.start, variant.step)
    matrix, shift = view.affine()
    composed = layout_through(layout(shape, strides), view)
    other = turned(shape, strides)
    return {
        "turned_shape": list(other.shape),
        "turned_strides": list(other.stride),
        "reshape_x": "no" if truth(other.shape, other.stride) is None else "yes",
        "reshape_z": "no" if truth(variant.z_shape, variant.z_strides) is None else "yes",
        "flat_stride": flat_stride,
        "matrix": [list(row) for row in matrix],
        "shift": list(shift),
        "composed_strides": list(composed.stride),
        "composed_offset": composed.offset,
        "moved": moved,
        "why_same": PROOF,
    }


# Both are None until the first dimension that counts.
HARMLESS = {"flat_stride": ("if stride is None: -> if expected is None:",)}


def _innermost(shape, strides):
    return strides[-1]


def _contiguous_only(shape, strides):
    stride = 1
    for extent, step in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and step != stride:
            return None
        stride *= extent
    return 1


def _units_count(shape, strides):
    for j in range(len(shape) - 1):
        if strides[j] != shape[j + 1] * strides[j + 1]:
            return None
    return strides[-1]


def _own_extent(shape, strides):
    kept = [(s, t) for s, t in zip(shape, strides, strict=True) if s > 1]
    for (s, t), (_, below) in zip(kept, kept[1:], strict=False):
        if t != s * below:
            return None
    return kept[-1][1]


def _in_words(shape, strides):
    return "yes"


def _other_direction(order, d):
    return order[d]


def _not_moved(order, d):
    return d


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    own = reference(variant)
    rows, columns, start, step = variant.rows, variant.columns, variant.start, variant.step

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("not-turned", turned_shape=[rows, columns]),
        slip("not-turned", turned_strides=[columns, 1]),
        slip("contiguous-strides", turned_strides=[rows, 1]),
        slip("chose-yes", reshape_x="yes"),
        *(slip(f"chose-{other}", reshape_z=other) for other in ("yes", "no") if other != own["reshape_z"]),
        slip("wrong-address", flat_stride=_innermost),
        slip("missed-stride", flat_stride=_own_extent),
        slip("missed-stride", flat_stride=_contiguous_only),
        slip("unit-dimension", flat_stride=_units_count),
        slip("wrong-form", flat_stride=_in_words),
        slip("other-way-round", matrix=[[0, step], [1, 0]]),
        slip("no-step", matrix=[[0, 1], [1, 0]]),
        slip("shift-of-the-view", shift=[start, 0]),
        slip("not-turned", composed_strides=[columns, step]),
        slip("no-step", composed_strides=[1, columns]),
        slip("rows-skipped", composed_offset=start * columns),
        slip("other-direction", moved=_other_direction),
        slip("not-moved", moved=_not_moved),
    )
