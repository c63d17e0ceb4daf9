"""Exercise 49: composed views against PyTorch's, the small language, and trimmed functions."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from staxlab import learn
from staxlab.learn.exercises import ex49, ex49_answers, ex49_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex49.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_composed_maps_lead_to_the_elements_that_two_views_show(seed):
    for shape, inner, outer in ex49_runs.views(seed):
        e = torch.arange(torch.Size(shape).numel()).view(shape)

        def look(view, seen):
            return torch.tensor([seen[tuple(int(p) for p in view(i))].item() for i in subscripts(view.shape)]).view(
                view.shape
            )

        twice = look(outer, look(inner, e))
        (a1, c1), (a2, c2) = ex49_runs._lists(outer), ex49_runs._lists(inner)
        matrix, shift = ex49_answers.compose(a1, c1, a2, c2)
        once = [e[ex49_runs._at(matrix, shift, i)].item() for i in subscripts(outer.shape)]
        assert once == twice.flatten().tolist()


def subscripts(shape):
    return [tuple(i) for i in torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, len(shape)).tolist()]


def test_strides_go_through_the_inner_view_first():
    assert ex49_runs.strides_of_both() == "A1^T A2^T t"
    x = torch.zeros(3, 5)
    assert x.t()[1:5:2].stride() == (2, 5)


def test_which_programs_may_merge():
    found = [ex49_runs.may_merge(text) for text in ex49_runs.PROGRAMS]
    assert found == [True, False, False, True, True]
    for seed in range(12):
        assert len({text for _, text in variant_for(ex49.Variant, seed).programs()}) == 3


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_both_eliminations_keep_explicit_programs(seed):
    """Theorem 6.2 on the reference's translations; on implicit ones neither holds."""
    broken = 0
    for program in ex49_runs.implicit_programs(seed):
        explicit = ex49_answers.thread(program)
        env = {"x": 5, "s0": 77}
        truth = ex49_runs.run(program, env, implicit=True)
        assert ex49_runs.run(explicit, env) == truth
        assert ex49_runs.run(ex49_runs.merge_equal(explicit), env) == truth
        assert ex49_runs.run(ex49_runs.remove_unused(explicit), env) == truth
        for change in (ex49_runs.merge_equal, ex49_runs.remove_unused):
            broken += ex49_runs.run(change(program), env, implicit=True) != truth
    assert broken, "draws without a state must not be merged or removed"


@pytest.mark.parametrize(
    "program",
    [
        [("v", "rand")],
        [("v", "rand", "s0", "s0")],
        [("v", "add", "x")],
        [("v", "add", "x", "y")],
        [("v", "neg", "x")],
        [("x", "add", "x", 1)],
        [("p", "rand", "s0"), ("v", "add", "p", 1)],
        [("v", "first", "x")],
        [("v", "add", "x", [1])],
        [("v", "add", "x", 0.5)],
    ],
)
def test_what_is_no_program_is_refused_with_its_binding(program):
    with pytest.raises(ex49_runs.NotAProgram, match=program[-1][0]):
        ex49_runs.run(program, {"x": 1, "s0": 1})
    verdict = check("2", thread=lambda given: program)["thread"]
    assert verdict.mistake == "no-program"


@pytest.mark.parametrize("answer", [None, 3, [], [("a",)], [(1, 2, 3)], ["ab"]])
def test_what_is_no_list_of_bindings(answer):
    assert check("2", thread=lambda given: answer)["thread"].mistake in ("wrong-form", "no-program")


def test_another_translation_is_right():
    """Names of its own, and a pair taken apart only where it is needed."""

    def thread(program):
        state, new = "s0", []
        for k, (name, operator, *rest) in enumerate(program):
            if operator == "rand":
                new.append((f"_{k}", "rand", state))
                new.append((f"_s{k}", "second", f"_{k}"))
                new.append((name, "first", f"_{k}"))
                state = f"_s{k}"
            else:
                new.append((name, operator, *rest))
        return new

    assert check("2", thread=thread)["thread"].credit == 1


def by_subscript(x):
    torch.arange(6)[x]
    return x * 2


def by_remainder(x):
    x.sum() % x
    return x + 1


def draws(x):
    torch.rand(3)
    return x + 1


def stops(x):
    if x[0] == 0:
        return 1 // 0
    return x + 1


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (by_subscript, None),
        (by_remainder, None),
        (draws, "nothing-unused"),
        (stops, "looks-at-numbers"),
        (lambda x: 3, "wrong-form"),
        (lambda x: (x.tolist(), x)[1], "looks-at-numbers"),
    ],
)
def test_functions_whose_trimming_shows_or_does_not(answer, mistake):
    verdict = check("3", unused=answer)["unused"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None), str(verdict)


def test_the_compiler_keeps_what_may_fail():
    verdict = check("3", unused=ex49_answers.unused)["unused"]
    assert dict(verdict.facts)["the compiler's own removal"] == "it keeps what may raise"


@pytest.mark.parametrize(
    ("part", "field", "answer"),
    [
        ("1", "compose", lambda A1, c1, A2, c2: (iter(A1), c1)),
        ("1", "compose", lambda A1, c1, A2, c2: ([[0.5]], [1])),
        ("2", "thread", lambda program: count()),
        ("2", "thread", lambda program: (binding for binding in program)),
        ("2", "thread", lambda program: [count()]),
    ],
)
def test_results_without_an_end_are_not_read(part, field, answer):
    assert check(part, **{field: answer})[field].mistake == "wrong-form"


def endless(*arguments):
    while True:
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("part", "field"), [("1", "compose"), ("2", "thread"), ("3", "unused"), ("3", "refines")])
def test_functions_without_an_end_are_stopped(part, field):
    assert check(part, **{field: endless})[field].mistake == "timed-out"
