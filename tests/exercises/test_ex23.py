"""Exercise 23: transfers of a softmax by the compiler's kernels, against Section 9.5; passes over long rows."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

import staxlab
from staxlab import learn
from staxlab.learn.exercises import ex23, ex23_answers, ex23_runs
from staxlab.learn.variants import variant_for

pytest.importorskip("sympy")


def check(part, seed=None, **answers):
    return learn.check(f"ex23.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize(("n", "length"), [(1, 5), (3, 7), (256, 1000), (64, 333)])
def test_the_kernels_transfer_what_section_9_5_says(n, length):
    """Five kernels read N, N + n, N, N, N + n elements and write n, N, N, n, N; one reads N and writes N."""
    whole = n * length
    five = ex23_runs.five_kernels(n, length)
    assert [list(pair) for pair in five] == ex23_answers.elements(n, length)
    assert ex23_runs.bytes_of(five) == 4 * (8 * whole + 4 * n)
    assert ex23_runs.fused_kernels(n, length) == ((whole, whole),)
    assert ex23_runs.unfused_kernels(n, length) == ((whole, n), (whole + n, n), (whole + 2 * n, whole))
    assert Fraction(ex23_runs.bytes_of(five), 8 * whole) == 4 + Fraction(2, length)


def test_five_operators_are_a_softmax():
    x = torch.randn(7, 33)
    (_, maximum, _), (_, subtract, _), (_, exponential, _), (_, total, _), (_, divide, _) = ex23_runs.OPERATORS
    e = exponential(subtract(x, maximum(x)))
    torch.testing.assert_close(divide(e, total(e)), torch.softmax(x, -1))


def test_passes_over_a_long_row():
    assert ex23_runs.passes(online=False) == 3 and ex23_runs.passes(online=True) == 2
    (kernel,) = staxlab.explain(ex23_runs.softmax, torch.empty(*ex23_runs.LONG), target="sm_90").kernels
    (decision,) = [d for d in kernel.decisions if d.topic == "row-passes"]
    assert kernel.launch["form"] == "looped" and decision.choice == 2 and "Proposition 9.1" in decision.reason


def test_subtraction_and_exponential_have_no_kernel_without_fusion():
    kernels = staxlab.explain(ex23_runs.softmax, torch.empty(64, 100), target="sm_90", options={"fuse": False}).kernels
    assert len(kernels) == 3
    written_as_kernels = "\n".join(kernel.source.splitlines()[0] for kernel in kernels)
    assert "amax" in written_as_kernels and "sum" in written_as_kernels and "Pointwise" in written_as_kernels
    for kernel in list(kernels)[1:]:
        assert "exp" in kernel.source and "sub" in kernel.source


@pytest.mark.parametrize("seed", range(6))
def test_variants_are_small_enough_to_be_held(seed):
    variant = variant_for(ex23.Variant, seed)
    assert len(ex23_runs.fused_kernels(variant.n, variant.length)) == 1


def test_formulas_may_be_written_otherwise():
    feedback = check("1", ratio="(8*L + 4)/(2*L)", five_bytes="32*n*L + 16*n", fused_bytes="2*(4*n*L)")
    assert all(feedback[name].credit == 1 for name in ("ratio", "five_bytes", "fused_bytes"))
    assert check("3", long_ratio="8/3 + 4/(3*L)")["long_ratio"].credit == 1
