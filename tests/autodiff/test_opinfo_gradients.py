"""Gradients and directional derivatives of PyTorch's operator samples, compiled and in eager execution.

``tests/loops/test_adjoints_opinfo`` evaluates joint graphs by the reference semantics. Here the compiled function is
called, as a user calls it, and the backward pass runs what was compiled.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest (the dev extra)")

from tests.autodiff import opinfo
from tests.transform.opinfo import VARIANTS

DTYPES = (torch.float32, torch.float64)
EVERYTHING = [(dtype, variant) for dtype in DTYPES for variant in VARIANTS]
TWO_VARIANTS = ("dense", "strided")
LONG_DIFFERENCES = {"nn.functional.ctc_loss"}  # whose sample has so many elements to move that it takes a minute
every_dtype_and_variant = pytest.mark.parametrize("dtype, variant", EVERYTHING, ids=str)
two_variants = pytest.mark.parametrize("variant", TWO_VARIANTS)
each_share = pytest.mark.parametrize("share", ["in turn", pytest.param("all", marks=pytest.mark.nightly)])


def shared_out(chosen, share, place, count):
    """In turn: every operator once, each in another of ``count`` settings. All of them in all settings by night."""
    return chosen if share == "all" else chosen[place::count]


def check(chosen, dtype, variant, backend, limit, how=opinfo.compare):
    """All of these samples, and at least half of them compared rather than refused or left out."""
    counts, failures = opinfo.survey(chosen, dtype, variant, backend, limit, how)
    print(dict(counts))
    assert not failures, "\n".join(failures)
    assert 2 * counts["compared"] > len(chosen), counts


@every_dtype_and_variant
def test_gradients_of_some_operators(dtype, variant):
    check(opinfo.differentiable(dtype)[5::20], dtype, variant, "aot_eager", 1)


def test_gradients_of_some_operators_in_kernels():
    check(opinfo.differentiable(torch.float32)[9::50], torch.float32, "dense", "stax", 1)


def test_some_operators_by_finite_differences():
    check(opinfo.differentiable(torch.float64)[7::60], torch.float64, "dense", "stax", 1, opinfo.check_by_differences)


def test_forward_mode_of_some_operators():
    check(
        opinfo.differentiable(torch.float64)[3::20], torch.float64, "dense", "aot_eager", 1, opinfo.check_forward_mode
    )


def test_second_derivatives_of_some_operators():
    chosen = opinfo.differentiable(torch.float64)[11::20]
    check(chosen, torch.float64, "dense", "aot_eager", 1, opinfo.check_second_derivatives)


@pytest.mark.slow
@each_share
@every_dtype_and_variant
def test_gradients_of_every_operator(dtype, variant, share):
    place = EVERYTHING.index((dtype, variant))
    chosen = shared_out(opinfo.differentiable(dtype), share, place, len(EVERYTHING))
    check(chosen, dtype, variant, "aot_eager", 2)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_gradients_of_every_operator_in_kernels(part):
    """Dtypes and variants in turn: all of them in six operators, and each operator once."""
    dtype, variant = EVERYTHING[part]
    check(opinfo.differentiable(dtype)[part::6], dtype, variant, "stax", 1)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_operator_by_finite_differences(part):
    chosen = [op for op in opinfo.differentiable(torch.float64)[part::4] if op.name not in LONG_DIFFERENCES]
    check(chosen, torch.float64, "dense", "stax", 1, opinfo.check_by_differences)


@pytest.mark.nightly
def test_the_other_operators_by_finite_differences():
    chosen = [op for op in opinfo.differentiable(torch.float64) if op.name in LONG_DIFFERENCES]
    assert len(chosen) == len(LONG_DIFFERENCES)
    check(chosen, torch.float64, "dense", "stax", 1, opinfo.check_by_differences)


@pytest.mark.slow
@each_share
@two_variants
def test_forward_mode_of_every_operator(variant, share):
    """Not broadcast: torch.func.jvp refuses most expanded arguments."""
    chosen = shared_out(opinfo.differentiable(torch.float64), share, TWO_VARIANTS.index(variant), 2)
    check(chosen, torch.float64, variant, "aot_eager", 1, opinfo.check_forward_mode)


@pytest.mark.slow
@each_share
@two_variants
def test_second_derivatives_of_every_operator(variant, share):
    chosen = shared_out(opinfo.differentiable(torch.float64), share, TWO_VARIANTS.index(variant), 2)
    check(chosen, torch.float64, variant, "aot_eager", 2, opinfo.check_second_derivatives)


@pytest.mark.slow
def test_forward_mode_in_kernels():
    check(opinfo.differentiable(torch.float64)[2::5], torch.float64, "dense", "stax", 1, opinfo.check_forward_mode)


WRONG = {"a factor": lambda g: g * 1.1, "None": lambda g: None, "single precision": lambda g: g.float()}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_gradient_is_seen(wrong, monkeypatch):
    from staxlab.autodiff.runtime import TrainingRegion

    (op,) = [op for op in opinfo.differentiable(torch.float64) if op.name == "sin"]
    right = TrainingRegion.gradients
    monkeypatch.setattr(TrainingRegion, "gradients", lambda *given: tuple(map(wrong, right(*given))))
    for how in (opinfo.compare, opinfo.check_by_differences):
        if how is opinfo.compare or wrong is not WRONG["single precision"]:  # differences are no finer than that
            _, failures = opinfo.survey([op], torch.float64, "dense", "aot_eager", 1, how)
            assert failures
