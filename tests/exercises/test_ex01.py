"""Exercise 1: its truth against the chapter and the compiler, and the feedback on particular answers."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

import staxlab
from staxlab import learn
from staxlab.learn.exercises import ex01, ex01_answers
from staxlab.learn.feedback import Status
from staxlab.learn.machine import elements_of, execute
from staxlab.learn.variants import variant_for

CHAPTER = ex01.Variant()


def check(part, seed=None, **answers):
    return learn.check(f"ex01.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize("n", [1, 5, 64])
def test_the_truth_is_table_1_1(n):
    """8N + n elements eagerly, 2N + n fused, 4N operations, for n x 128 float32 (Section 1.1)."""
    elements = 128 * n
    m = ex01.model(CHAPTER, n)
    assert [row.elements for row in m.eager.rows] == [3 * elements, 2 * elements, 2 * elements, elements + n]
    assert ex01.eager_bytes(m) == 4 * (8 * elements + n)
    assert ex01.fused_bytes(m) == m.bound.nbytes == 4 * (2 * elements + n)
    assert m.eager.operations == 4 * elements
    without = ex01.model(CHAPTER, n, False)
    assert (ex01.eager_bytes(without), ex01.fused_bytes(without)) == (4 * 7 * elements, 4 * 3 * elements)


def test_the_truth_is_what_the_compiler_reports():
    x, w = torch.randn(6, 128), torch.randn(6, 128)
    traffic = staxlab.explain(ex01.example(2), x, w, target="sm_90").traffic
    m = ex01.model(CHAPTER, 6)
    assert (traffic.eager.nbytes, traffic.compiled.nbytes) == (m.eager.nbytes, m.compiled.nbytes)


def test_the_reference_schedule_moves_what_the_model_says():
    variant = ex01.Variant(columns=5)
    inputs = {name: dict.fromkeys(elements_of((3, 5)), Fraction(1)) for name in "xw"}
    run = execute(ex01_answers.schedule(3, 5, 2), inputs, {"y": (3,)}, registers=ex01.REGISTERS)
    assert run.transfers * 4 == ex01.fused_bytes(ex01.model(variant, 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types_move_in_proportion(dtype):
    size = getattr(torch, dtype).itemsize
    m = ex01.model(ex01.Variant(dtype=dtype), 4)
    assert ex01.eager_bytes(m) == size * (8 * 512 + 4) and ex01.fused_bytes(m) == size * (2 * 512 + 4)


def test_answers_may_use_numbers_or_names():
    for answer in ("32*128*n + 4*n", "b*n*(8*C + 1)", "4100*n", lambda n: 4100 * n, lambda n: 4100.0 * n):
        assert check(1, eager_bytes=answer)["eager_bytes"].credit == 1


def test_python_floats_are_as_good_as_formulas():
    answers = {
        "eager_intensity": 4 * 128 / (4 * (8 * 128 + 1)), "fused_intensity": 4 * 128 / (4 * (2 * 128 + 1)),
        "saved_with_sum": 1 - (2 * 128 + 1) / (8 * 128 + 1), "saved_without_sum": 4 / 7,
        "bound_without_sum": lambda n: 3.0 * 4 * 128 * n, "eager_bytes": lambda n: n * 4100.0,
    }  # fmt: skip
    for part in (1, 3):
        feedback = check(part, **answers)
        for item in feedback.items():
            if item.field in answers:
                assert item.verdict.credit == 1, str(feedback)


@pytest.mark.parametrize("field", ["eager_intensity", "fused_intensity", "saved_with_sum", "eager_bytes"])
def test_a_wrong_guess_is_not_told_the_answer(field):
    part = 3 if field.startswith("saved") else 1
    field_is = next(f for f in ex01.PARTS[part - 1].fields if f.name == field)
    value = field_is.read(ex01.reference(CHAPTER)[field], CHAPTER.constants()).at(n=1)
    for guess in ("1/3", 0.25, "n", "8*n", "1/(n - 1)"):
        verdict = check(part, **{field: guess})[field]
        said = f"{verdict.message} {verdict.facts}"
        assert verdict.credit < 1 and str(value) not in said and f"{float(value):.4g}" not in said, said


def test_intensity_that_follows_from_wrong_bytes_earns_half():
    feedback = check(1, eager_bytes="b*(7*C*n + n)", eager_intensity="4*C/(b*(7*C + 1))")
    assert feedback["eager_bytes"].credit == 0
    assert feedback["eager_intensity"].mistake == "follows-from-wrong-bytes"
    assert feedback["eager_intensity"].credit == Fraction(1, 2)
    alone = check(1, eager_intensity="4*C/(b*(7*C + 1))")
    assert alone["eager_intensity"].credit == 0


def test_the_wrong_element_size_is_named_where_it_is_wrong():
    seed = next(seed for seed in range(100) if variant_for(ex01.Variant, seed).dtype == "float16")
    feedback = check(1, seed=seed, eager_bytes="4*(8*C*n + n)", fused_bytes="4*(2*C*n + n)")
    assert feedback["eager_bytes"].mistake == feedback["fused_bytes"].mistake == "wrong-element-size"
    assert "float16" in feedback["eager_bytes"].message


def columns_first(n, columns, k):
    """All rows' sums at once: right, and as many registers as rows."""
    for i in range(n):
        yield ("set", f"total{i}", 0)
    for j in range(columns):
        for i in range(n):
            yield ("read", "a", "x", i, j)
            yield ("read", "c", "w", i, j)
            yield ("add", "a", "a", "c")
            yield ("relu", "a", "a")
            yield ("mul", "a", "a", k)
            yield ("add", f"total{i}", f"total{i}", "a")
    for i in range(n):
        yield ("write", f"total{i}", "y", i)


def multiplies_at_the_end(n, columns, k):
    """One multiplication per row instead of one per element: equal in exact arithmetic, and the same traffic."""
    for i in range(n):
        yield ("set", "total", 0)
        for j in range(columns):
            yield from (("read", "a", "x", i, j), ("read", "c", "w", i, j), ("add", "a", "a", "c"), ("relu", "a", "a"))
            yield ("add", "total", "total", "a")
        yield ("mul", "total", "total", k)
        yield ("write", "total", "y", i)


def accumulates_in_main_memory(n, columns, k):
    for i in range(n):
        yield from (("set", "a", 0), ("write", "a", "y", i))
        for j in range(columns):
            yield from (("read", "a", "x", i, j), ("read", "c", "w", i, j), ("add", "a", "a", "c"), ("relu", "a", "a"))
            yield from (("mul", "a", "a", k), ("read", "t", "y", i), ("add", "t", "t", "a"), ("write", "t", "y", i))


@pytest.mark.parametrize(
    ("schedule", "mistake"),
    [
        (multiplies_at_the_end, None),
        (lambda n, columns, k: list(multiplies_at_the_end(n, columns, k)), None),
        (columns_first, None),  # its registers grow with n, and five rows still fit
        (accumulates_in_main_memory, "output-rewritten"),
        (lambda n, columns, k: (step for step in ex01_answers.schedule(n, 128, k)), "out-of-bounds"),
        (lambda n, columns, k: [], "output-missing"),
        (lambda n, columns, k: None, "failed-call"),
        (lambda n, columns, k: iter(lambda: ("set", "a", 1), None), "wrong-form"),
        (lambda n, columns, k: "read", "instruction"),
        (lambda n, columns, k: [("fma", "a", "a", "a", 1)], "instruction"),
    ],
)
def test_schedules(schedule, mistake):
    verdict = check(2, schedule=schedule)["schedule"]
    assert verdict.mistake == mistake, verdict
    assert (verdict.credit == 1) == (mistake is None)


def test_an_endless_schedule_is_stopped():
    def endless(n, columns, k):
        while True:
            pass
        yield

    field = next(field for field in ex01.PARTS[1].fields if field.name == "schedule")
    callee = field.read(endless, {})
    callee.seconds = 0.05
    assert ex01.check(CHAPTER, {}, None)["schedule"](callee).mistake == "timed-out"


def test_the_smallest_failing_size_is_shown():
    def forgets_the_second_row(n, columns, k):
        return [step for step in ex01_answers.schedule(n, columns, k) if step != ("write", "total", "y", 1)]

    verdict = check(2, schedule=forgets_the_second_row)["schedule"]
    assert dict(verdict.facts)["size"] == "n = 2, columns = 1, k = 2" and verdict.mistake == "output-missing"


@pytest.mark.parametrize(
    ("witness", "mistake"),
    [
        (lambda tensor, i, j: (0, 0, 1), None),
        (lambda tensor, i, j: [-1, 0.5, 3], None),
        (lambda tensor, i, j: (5, -5, 6) if tensor == "x" else (-5, 5, 6), None),
        (lambda tensor, i, j: (-3, 1, 0), "hidden-by-relu"),
        (lambda tensor, i, j: (1, 1, 1 + 2**-40), "same-inputs"),
        (lambda tensor, i, j: (1e38, 1e38, 3e38), "not-finite"),
        (lambda tensor, i, j: (float("nan"), 1, 2), "wrong-form"),
        (lambda tensor, i, j: (1, 1, 2) if j < 3 else (-1, -1, -2), "hidden-by-relu"),
        (lambda tensor, i, j: (2**20, 2**20, 2**20 + 0.125), "no-difference"),
        (lambda tensor, i, j: (1, 1, 2, 3), "wrong-form"),
        (lambda tensor, i, j: 1 / 0, "failed-call"),
    ],
)
def test_witnesses(witness, mistake):
    verdict = check(2, witness=witness)["witness"]
    assert verdict.mistake == mistake, verdict


def test_a_witness_that_fails_for_some_positions_is_shown_the_smallest():
    verdict = check(2, witness=lambda tensor, i, j: (1, 1, 2) if j < 3 else (-1, -1, -2))["witness"]
    assert "columns = 4" in dict(verdict.facts)["for"] and "j = 3" in dict(verdict.facts)["for"]


def test_feedback_prints_and_draws():
    reference = ex01.reference(CHAPTER)
    feedback = learn.check("ex01", reference, record=False)
    assert "17 of 17 points, 4 more from your instructor" in str(feedback)
    assert feedback["proof"].status is Status.PENDING
    assert "✓" in feedback._repr_mimebundle_()["text/html"]


def test_the_rubric_is_there_for_the_instructor():
    assert learn.rubric("ex01").points == 4 and "On-chip storage" in str(learn.rubric("ex01.2"))
