"""Exercise 16: coefficients against additions counted one by one, and the bound against float32."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
import torch

from staxlab import learn
from staxlab.learn.exercises import ex16, ex16_answers, ex16_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.rounding import pairwise, segmented, sequential


def check(part, seed=None, **answers):
    return learn.check(f"ex16.{part}", answers, seed=seed, record=False)


def summands(n):
    return [ex16_runs.Summand(Counter([k])) for k in range(n)]


def in_order(numbers):
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number
    return total


@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 4), (64, 8), (64, 64), (100, 10)])
def test_coefficients_are_the_most_additions_a_number_meets(n, k):
    assert in_order(summands(n)).height == sequential(n).height == n - 1
    each = n // k
    numbers = summands(n)
    parts = [in_order(numbers[j * each : (j + 1) * each]) for j in range(k)]
    assert in_order(parts).height == segmented(n, k).height
    tree = summands(n)
    while len(tree) > 1:
        pairs = [tree[i] + tree[i + 1] for i in range(0, len(tree) - 1, 2)]
        tree = pairs + tree[2 * len(pairs) :]
    assert tree[0].height == pairwise(n).height


def test_the_chapters_numbers():
    answers = ex16_answers.reference(ex16.Variant())
    found = [answers[f"{name}_coefficient"] for name in ("sequential", "few", "many", "tree")]
    assert found == [2**20 - 1, 2**16 - 1 + 15, 1023 + 1023, 20]
    assert answers["best_segments"] == 1024 and answers["fewest_accumulators"] == 128


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_the_best_number_of_segments_is_unique(seed):
    variant = variant_for(ex16.Variant, seed)
    heights = {2**j: segmented(variant.n, 2**j).height for j in range(variant.exponent + 1)}
    best = min(heights.values())
    assert [k for k, height in heights.items() if height == best] == [2 ** (variant.exponent // 2)]
    fewest = ex16_runs.fewest_accumulators(variant.n, variant.limit)
    assert 2 <= fewest < variant.n


def test_pythons_sum_counts_as_one_running_sum():
    verdict = check("2", vector_sum=lambda x, W: sum(x))["vector_sum"]
    assert verdict.mistake == "one-running-sum"


def test_a_tree_of_pairs_is_no_worse_than_asked():
    def tree(x, W):
        while len(x) > 1:
            x = [x[k] + x[k + 1] for k in range(0, len(x) - 1, 2)] + x[len(x) // 2 * 2 :]
        return x[0]

    assert check("2", vector_sum=tree)["vector_sum"].credit == 1


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda x, W: None, "wrong-form"),
        (lambda x, W: x[0] + 1, "failed-call"),
        (lambda x, W: x[0] * 2, "failed-call"),
        (lambda x, W: x[0], "lost-number"),
    ],
)
def test_what_is_no_sum(answer, mistake):
    assert check("2", vector_sum=answer)["vector_sum"].mistake == mistake


def test_errors_are_measured_and_inside_their_bounds():
    verdict = check("2", seed=7, vector_sum=ex16_answers.vector_sum)["vector_sum"]
    rows = [value for label, value in verdict.facts if label.startswith("float32")]
    assert len(rows) == 2
    for row in rows:
        error, bound = (float(part.split()[-1]) for part in row.split(","))
        assert 0 < error < bound


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda n: [1.0] + [2.0**-24] * (n - 1), None),
        (lambda n: [4.0] + [2.0**-22] * (n - 1), None),
        (lambda n: [-1.0] + [-(2.0**-24)] * (n - 1), None),
        (lambda n: [0.0] * n, "no-error"),
        (lambda n: ["a"] * n, "wrong-form"),
        (lambda n: [float("inf")] * n, "wrong-form"),
        (lambda n: [1e-60] * n, "no-error"),  # zeros, in float32
        (lambda n: torch.tensor([1.0] + [2.0**-24] * (n - 1)), None),
        (lambda n: [1e39] * n, "wrong-form"),
        (lambda n: count(), "wrong-form"),
    ],
)
def test_other_worst_cases(answer, mistake):
    verdict = check("3", worst_case=answer)["worst_case"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None), str(verdict)
