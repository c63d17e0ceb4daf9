"""Exercise 19: what the fused loop reads, run, and what Proposition 7.2 says of loops a student writes."""

from __future__ import annotations

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex19_answers, ex19_runs
from staxlab.polyhedral import fusion, loop_nests


def check(part, seed=None, **answers):
    return learn.check(f"ex19.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize("shift", [1, 2, 7])
def test_the_truth_is_that_of_running_the_loops(shift):
    assert ex19_runs.distance(shift) == -shift and ex19_runs.value_read(shift) == "what was in memory before"
    assert ex19_runs.backwards(shift) == "into one sequential loop"
    x, w = list(range(1, 9)), list(range(100, 108 + shift))
    assert ex19_runs.run_fused(x, w, shift) == w[shift:] == ex19_answers.fused(x, w, shift)


def test_running_backwards_really_gives_what_two_loops_give():
    n, shift = 9, 2
    x, w = list(range(1, n + 1)), [0] * (n + shift)
    y = [0] * n
    for i in reversed(range(n)):
        w[i] = 2 * x[i]
        y[i] = w[i + shift]
    two = [2 * value for value in x] + [0] * shift
    assert y == two[shift:]


def test_a_legal_fusion_is_called_legal_with_the_reason():
    verdict = check("2", two_loops=ex19_answers._behind)["two_loops"]
    assert verdict.mistake == "legal-fusion" and dict(verdict.facts)["because"] == "no distance is negative"


@pytest.mark.parametrize("text", ["for i in range(4):\n    w(i)", "not python at all (", 7, None])
def test_what_cannot_be_read_is_said_to_be(text):
    verdict = check("2", two_loops=lambda n, s: text)["two_loops"]
    assert verdict.mistake == "wrong-form"


def test_other_names_and_more_reads_are_fine():
    def mine(n, s):
        return f"for k in range({n}):\n    p[k] = q[k]\nfor m in range({n}):\n    r[m] = p[{s} + m] * q[m]"

    assert check("2", two_loops=mine)["two_loops"].credit == 1
    assert not fusion(*loop_nests(mine(9, 2))).sequential
