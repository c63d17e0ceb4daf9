"""Answers to Exercise 50: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex50 import Variant


def smallest_skew(distances):
    return max(-(b // a) for a, b in distances if a > 0)


def smallest_slope(distances):
    return max(-((b - 1) // a) for a, b in distances if a > 0)


PARALLEL = """All iterations with the same value of theta may run at the same time: if one had to wait for another,
their distance delta would have c . delta >= 1, so their dates would differ. For theta = 2 i + j they lie on lines of
slope -2, one step down and two to the left: the wavefronts. The dates themselves run one after the other, with a
barrier between them, so the time is the number of dates and not the number of iterations, if there are enough
processors for the widest front. At both ends of the space fronts are short and processors idle. The skewed nest is the
same thing as loops: date outside, sequential, and the iterations of a date inside, parallel."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex50_runs import at_once, best_matrix, best_schedule, found_in, is_interchangeable, is_permutable

    case = (variant.distances, variant.rows, variant.columns)
    found = found_in(*case)
    return {
        "interchange_50": is_interchangeable(found),
        "forbidding_distance": list(variant.distances[2]),
        "permutable_50": is_permutable(found),
        "skew_matrix": [list(row) for row in best_matrix(*case).rows],
        "smallest_skew": smallest_skew,
        "schedule_50": [int(c) for c in best_schedule(*case).coefficients],
        "smallest_slope": smallest_slope,
        "at_once": at_once(*case),
        "which_in_parallel": PARALLEL,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _rounded_down(distances):
    return max(-b // a for a, b in distances if a > 0)


def _second_entries(distances):
    return max(-b for a, b in distances)


def _not_negative(distances):
    return max([0, *(-(b // a) for a, b in distances if a > 0)])


def _no_step(distances):
    return max(-(b // a) for a, b in distances if a > 0)


def _one_more(distances):
    return max(-(b // a) for a, b in distances if a > 0) + 1


def _not_negative_slope(distances):
    return max([0, *(-((b - 1) // a) for a, b in distances if a > 0)])


def _a_list(distances):
    return [max(distances)]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    own = reference(variant)
    (_, _), (_, _), (a, b) = variant.distances
    skew = own["skew_matrix"][1][0]
    slope, one = own["schedule_50"]
    rows, columns = variant.rows, variant.columns

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    def other(name: str) -> WrongAnswer:
        option = "not legal" if own[name] == "legal" else "legal"
        return slip(f"chose-{option.replace(' ', '-')}", **{name: option})

    return (
        other("interchange_50"),
        other("permutable_50"),
        slip("no-distance", forbidding_distance=[b, a]),
        slip("harmless-distance", forbidding_distance=list(variant.distances[1])),
        slip("not-unimodular", skew_matrix=[[1, 1], [1, 1]]),
        slip("not-unimodular", skew_matrix=[[2, 0], [skew, 1]]),
        slip("not-legal", skew_matrix=[[0, 1], [1, 0]]),
        slip("not-permutable", skew_matrix=[[1, 0], [skew - 1, 1]]),
        slip("not-permutable", skew_matrix=[[1, 0], [0, 1]]),
        slip("not-the-nearest", skew_matrix=[[1, 0], [skew + 1, 1]]),
        slip("not-whole", skew_matrix=[[1, 0], [skew + 0.5, 1]]),
        slip("too-small", smallest_skew=_rounded_down),
        slip("wrong-form", smallest_skew=_a_list),
        slip("too-small", smallest_skew=_second_entries),
        slip("never-negative", smallest_skew=_not_negative),
        slip("too-large", smallest_skew=_one_more),
        slip("too-early", schedule_50=[0, 1]),
        slip("too-many-dates", schedule_50=[slope + 2, one]),
        slip("too-small", smallest_slope=_no_step),
        slip("never-negative", smallest_slope=_not_negative_slope),
        slip("wrong-form", smallest_slope=_a_list),
        *([slip("a-column", at_once=rows)] if own["at_once"] != rows else []),
        *([slip("a-row", at_once=columns)] if columns not in (own["at_once"], rows) else []),
        slip("all", at_once=rows * columns),
    )
