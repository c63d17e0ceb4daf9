"""Answers to Exercise 49: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex49 import Variant


def compose(A1, c1, A2, c2):
    A = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*A1, strict=True)] for row in A2]
    c = [sum(a * b for a, b in zip(row, c1, strict=True)) + shift for row, shift in zip(A2, c2, strict=True)]
    return A, c


def thread(program):
    state, explicit = "s0", []
    for name, operator, *arguments in program:
        if operator == "rand":
            explicit += [
                ("pair of " + name, "rand", state),
                (name, "first", "pair of " + name),
                ("after " + name, "second", "pair of " + name),
            ]
            state = "after " + name
        else:
            explicit.append((name, operator, *arguments))
    return explicit


def unused(x):
    6 // x
    return -x


def refines(before, after):
    return all(b == "error" or a == b for b, a in zip(before, after, strict=True))


WHEN = """The proof of Theorem 6.2 (1) needs that a binding's value is determined by the environment: if the two
bindings are the same expression e, and the variables of e have the same values, then so have both. rand(sigma) as a
function of the state it is given is of that kind, value and new state alike, so the theorem holds for it as it stands:
two bindings rand(s) with the same s are equal and may be merged. What it does not say is that two draws may be merged:
the second one is rand(s') with the state that the first returned, another expression with another value. So the
condition is on how the program is written: every draw names its state, and takes the one that the draw before it left.
With a state that has no name rand() is not a function of the environment, and the proof stops at its first step."""

REFINES = """P' refines P if, on every input on which P gives a result, P' gives the same one (bit by bit); on inputs on
which P fails, P' may do anything. It is reflexive and transitive, so transformations can be chained, but it is not
symmetric: removing the unused 6 // x takes an error away and is a refinement, and putting it in is none. Equivalence is
refinement both ways, and where nothing can fail the two are the same. So with operations that may fail, removal of dead
code is correct as a refinement only, and moving an operation to where it would not have been executed (out of a mask or
a branch) is not correct at all. One may also choose to keep errors: then what may fail must not be removed, which is
what this compiler does, because its users compare it with eager execution."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex49_runs import may_merge, strides_of_both

    answers = {f"merge_{name}": "yes" if may_merge(text) else "no" for name, text in variant.programs()}
    return {
        "compose": compose,
        "strides_of_both": strides_of_both(),
        **answers,
        "thread": thread,
        "when_merging": WHEN,
        "unused": unused,
        "refines": refines,
        "refinement": REFINES,
    }


# Any number may be divided.
HARMLESS = {"unused": ("6 // x -> 7 // x", "6 // x -> 5 // x")}


def _other_way_round(A1, c1, A2, c2):
    A = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*A2, strict=True)] for row in A1]
    return A, [sum(a * b for a, b in zip(row, c2, strict=True)) + shift for row, shift in zip(A1, c1, strict=True)]


def _shifts_added(A1, c1, A2, c2):
    A = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*A1, strict=True)] for row in A2]
    return A, [(c1[k] if k < len(c1) else 0) + shift for k, shift in enumerate(c2)]


def _inner_shift_only(A1, c1, A2, c2):
    A = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*A1, strict=True)] for row in A2]
    return A, c2


def _matrix_only(A1, c1, A2, c2):
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*A1, strict=True)] for row in A2]


def _one_state(program):
    explicit = []
    for name, operator, *arguments in program:
        if operator == "rand":
            explicit += [("pair of " + name, "rand", "s0"), (name, "first", "pair of " + name)]
        else:
            explicit.append((name, operator, *arguments))
    return explicit


def _used_draws_only(program):
    read = {x for _, _, *arguments in program for x in arguments}
    state, explicit = "s0", []
    for name, operator, *arguments in program:
        if operator == "rand" and name in read:
            explicit += [("pair of " + name, "rand", state), (name, "first", "pair of " + name)]
            explicit.append(("after " + name, "second", "pair of " + name))
            state = "after " + name
        elif operator != "rand":
            explicit.append((name, operator, *arguments))
    return explicit


def _pair_as_number(program):
    return [(name, operator, *(["s0"] if operator == "rand" else arguments)) for name, operator, *arguments in program]


def _not_translated(program):
    return program


def _rewritten(program):
    return len(program)


def _never_fails(x):
    x * 2
    return x + 1


def _all_used(x):
    return 6 // x


def _written(x):
    x.mul_(2)
    return x + 1


def _branches(x):
    if (x == 0).any():
        raise ZeroDivisionError("zero")
    return x + 1


def _fails_at_once(x):
    x[7]
    return x + 1


def _equal(before, after):
    return before == after


def _errors_anywhere(before, after):
    return all("error" in (b, a) or a == b for b, a in zip(before, after, strict=True))


def _reversed(before, after):
    return all(a == "error" or a == b for b, a in zip(before, after, strict=True))


def _no_new_errors(before, after):
    return all(b == "error" or a != "error" for b, a in zip(before, after, strict=True))


def _counts(before, after):
    return before.count("error")


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    own = reference(variant)

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    other = {"yes": "no", "no": "yes"}
    return (
        slip("other-way-round", compose=_other_way_round),
        slip("wrong-shift", compose=_shifts_added),
        slip("wrong-shift", compose=_inner_shift_only),
        slip("wrong-form", compose=_matrix_only),
        slip("chose-A2^T-A1^T-t", strides_of_both="A2^T A1^T t"),
        *(
            slip(f"chose-{other[own[f'merge_{name}']]}", **{f"merge_{name}": other[own[f"merge_{name}"]]})
            for name in ("first", "second", "third")
        ),
        slip("one-state", thread=_one_state),
        slip("other-value", thread=_used_draws_only),
        slip("no-program", thread=_pair_as_number),
        slip("no-program", thread=_not_translated),
        slip("wrong-form", thread=_rewritten),
        slip("same-behaviour", unused=_never_fails),
        slip("nothing-unused", unused=_all_used),
        slip("nothing-unused", unused=_written),
        slip("failed-call", unused=_fails_at_once),
        slip("looks-at-numbers", unused=_branches),
        slip("too-strict", refines=_equal),
        slip("error-introduced", refines=_errors_anywhere),
        slip("other-direction", refines=_reversed),
        slip("other-result", refines=_no_new_errors),
        slip("wrong-form", refines=_counts),
    )
