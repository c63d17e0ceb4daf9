"""Exercise 11: layouts against PyTorch's own views and against addresses, one after the other."""

from __future__ import annotations

import pytest
import torch

from staxlab import learn
from staxlab.learn.exercises import ex11, ex11_answers, ex11_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex11.{part}", answers, seed=seed, record=False)


def strided(shape, strides):
    return torch.empty_strided(shape, strides, device="meta")


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_the_truth_is_pytorchs(seed):
    variant = variant_for(ex11.Variant, seed)
    answers = ex11_answers.reference(variant)
    x = torch.zeros(variant.rows, variant.columns)
    w = x[:, variant.start :: variant.step].t()
    assert answers["turned_strides"] == list(x.t().stride()) and answers["turned_shape"] == list(x.t().shape)
    assert answers["composed_strides"] == list(w.stride()) and answers["composed_offset"] == w.storage_offset()
    assert answers["reshape_x"] == "no"
    z = torch.zeros(1000).as_strided(variant.z_shape, variant.z_strides)
    assert (answers["reshape_z"] == "yes") == (z.reshape(-1).data_ptr() == z.data_ptr())


def test_both_answers_about_z_occur():
    answers = {ex11_answers.reference(variant_for(ex11.Variant, seed))["reshape_z"] for seed in range(20)}
    assert answers == {"yes", "no"}


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_one_stride_where_the_addresses_are_in_step(seed):
    for shape, strides in ex11_runs.layouts(seed):
        places = ex11_runs.addresses(ex11_runs.layout(shape, strides))
        steps = {b - a for a, b in zip(places, places[1:], strict=False)}
        truth = ex11_runs.flat_stride(shape, strides)
        assert truth == (steps.pop() if len(steps) == 1 else None), (shape, strides)
        assert ex11_answers.flat_stride(shape, strides) == truth


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_layouts_of_both_kinds_are_tried(seed):
    found = [ex11_runs.flat_stride(*case) is None for case in ex11_runs.layouts(seed)]
    assert 8 < sum(found) < len(found) - 8
    assert any(1 in shape for shape, _ in ex11_runs.layouts(seed))


def test_only_one_dimension_is_right_for_each_exchange():
    """Otherwise a wrong answer could pass."""
    for order, d in ex11_runs.exchanges():
        same = [p for p in range(len(order)) if len(set(ex11_runs.both_ways(order, d, p))) == 1]
        assert same == [order.index(d)]


def test_pytorch_exchanges_them_too():
    x = torch.arange(7 * 9 * 11).view(7, 9, 11)
    for order, d in ex11_runs.exchanges():
        if len(order) != 3:
            continue
        cut = x.narrow(d, 1, 5).permute(order)
        assert torch.equal(cut, x.permute(order).narrow(ex11_answers.moved(order, d), 1, 5))


def test_a_counterexample_is_small_and_does_not_tell_the_stride():
    verdict = check("2", flat_stride=lambda shape, strides: None)["flat_stride"]
    facts = dict(verdict.facts)
    assert facts["shape"] == "(2,)" and facts["addresses in order"] == "0, 1" and verdict.mistake == "missed-stride"


def test_numpy_and_tensors_are_numbers_too():
    feedback = check("3", matrix=torch.tensor([[0, 1], [2, 0]]), shift=torch.tensor([0, 1]))
    assert feedback["matrix"].credit == feedback["shift"].credit == 1
