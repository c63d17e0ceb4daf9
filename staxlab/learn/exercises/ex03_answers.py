"""Answers to Exercise 3: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex03 import Variant

USES, FREE = "uses the projection", "holds for any guards"


def separate():
    import torch

    def key(x, k):
        return tuple(x.shape), k

    def same_shape(x, k):
        return x.shape == (2, 3)

    x = torch.ones(2, 3)
    return key, [same_shape], (x, 2), (x, 5)


def exactly(key, version_key, held):
    return all((now == then) == holds for now, then, holds in zip(key, version_key, held, strict=True))


PROJECTION = """The first two steps speak of a lookup and of tuples; no guard occurs in them. Guards enter in step 3:
that the components differ makes g_i fail because g_i is, by Definition 2.3, the statement that they are equal. Step 4
reads the same definition backwards, which makes the failing guards exactly the differing components. In my example k
is a component of the key, it differs, and no guard is about it: step 3 breaks. A dispatcher that trusts the guards uses
the stale version; one that looks the key up compiles again, and no failing guard says why."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    return {
        "separate": separate,
        "by_guards": "a wrong value",
        "by_key": "a recompilation without a reason",
        "exactly": exactly,
        "step_1": FREE,
        "step_2": FREE,
        "step_3": USES,
        "step_4": USES,
        "projection": PROJECTION,
    }


# Changes to the function above that leave it right: other numbers k are as good.
HARMLESS = {
    "separate": (
        "return (key, [same_shape], (x, 2), (x, 5)) -> return (key, [same_shape], (x, 3), (x, 5))",
        "return (key, [same_shape], (x, 2), (x, 5)) -> return (key, [same_shape], (x, 1), (x, 5))",
        "return (key, [same_shape], (x, 2), (x, 5)) -> return (key, [same_shape], (x, 2), (x, 6))",
        "return (key, [same_shape], (x, 2), (x, 5)) -> return (key, [same_shape], (x, 2), (x, 4))",
    ),
}


def _shape_and_k(x, k):
    return tuple(x.shape), k


def _guards_know_k():
    import torch

    x = torch.ones(2, 3)
    return _shape_and_k, [lambda x, k: x.shape == (2, 3), lambda x, k: k == 2], (x, 2), (x, 5)


def _key_forgets_k_too():
    import torch

    x = torch.ones(2, 3)
    return lambda x, k: tuple(x.shape), [lambda x, k: x.shape == (2, 3)], (x, 2), (x, 5)


def _guard_is_for_the_second_call():
    import torch

    x = torch.ones(2, 3)
    return _shape_and_k, [lambda x, k: k == 5], (x, 2), (x, 5)


def _nothing_is_guarded():
    import torch

    x = torch.ones(2, 3)
    return _shape_and_k, [lambda x, k: True], (x, 2), (x, 5)


def _no_guards():
    import torch

    x = torch.ones(2, 3)
    return _shape_and_k, [], (x, 2), (x, 5)


def _key_sees_what_does_not_matter():
    import torch

    def key(x, k):
        return tuple(x.shape), k, x.sum().item()

    return key, [lambda x, k: x.shape == (2, 3)], (torch.ones(2, 3), 2), (torch.zeros(2, 3), 2)


def _key_without_a_shape():
    import torch

    x = torch.ones(2, 3)
    return lambda x, k: k, [lambda x, k: x.shape == (2, 3)], (x, 2), (x, 5)


def _key_of_addresses():
    import torch

    x = torch.ones(2, 3)
    return lambda x, k: (x.data_ptr(), k), [lambda x, k: x.shape == (2, 3)], (x, 2), (x, 5)


def _key_is_a_list():
    import torch

    x = torch.ones(2, 3)
    return lambda x, k: [*x.shape, k], [lambda x, k: x.shape == (2, 3)], (x, 2), (x, 5)


def _one_guard_fails(key, version_key, held):
    return not all(held)


def _a_miss_is_explained(key, version_key, held):
    return (key != version_key) == (not all(held))


def _differences_fail(key, version_key, held):
    return all(not holds for now, then, holds in zip(key, version_key, held, strict=True) if now != then)


def _failures_differ(key, version_key, held):
    return all(now != then for now, then, holds in zip(key, version_key, held, strict=True) if not holds)


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""

    def slip(mistake: str, *loses: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, loses or tuple(answers))

    right = reference(variant)
    steps = {name: right[name] for name in ("step_1", "step_2", "step_3", "step_4")}
    other = {USES: FREE, FREE: USES}
    named = {USES: "chose-uses-the-projection", FREE: "chose-holds-for-any-guards"}
    return (
        slip("guard-fails", separate=_guards_know_k),
        slip("keys-equal", separate=_key_forgets_k_too),
        slip("guard-fails-at-home", separate=_guard_is_for_the_second_call),
        slip("vacuous-guards", separate=_nothing_is_guarded),
        slip("no-guards", separate=_no_guards),
        slip("right-value", separate=_key_sees_what_does_not_matter),
        slip("unsound-key", separate=_key_without_a_shape),
        slip("key-not-repeatable", separate=_key_of_addresses),
        slip("key-not-hashable", separate=_key_is_a_list),
        slip("wrong-form", separate=lambda: (1, 2, 3)),
        slip("chose-a-recompilation-without-a-reason", by_guards="a recompilation without a reason"),
        slip("chose-an-error", by_guards="an error"),
        slip("chose-a-wrong-value", by_key="a wrong value"),
        slip("chose-no-harm", by_key="no harm"),
        slip("too-strict", exactly=_one_guard_fails),
        slip("unnoticed-difference", exactly=_failures_differ),
        slip("false-alarm", exactly=_differences_fail),
        slip("false-alarm", exactly=_a_miss_is_explained),
        *(slip(named[other[given]], **{name: other[given]}) for name, given in steps.items()),
        *(
            slip(named[other[one[1]]], one[0], two[0], **{one[0]: other[one[1]], two[0]: other[two[1]]})
            for one, two in itertools.combinations(steps.items(), 2)
        ),
    )
