"""Chains on tensors: whatever is recomputed, values and gradients are eager's, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from staxlab.autodiff.chain import ChainError, differentiate
from staxlab.autodiff.checkpoint import binomial, recompute_all, save_all, uniform_segments
from staxlab.autodiff.reversal import Advance, Free, ReversalError, Reverse, Store


class Residual(nn.Module):
    """Reads its layer twice."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return torch.tanh(self.layer(x)) + self.layer(0.3 * x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.variable = x  # a name that PyTorch's own nodes use as well
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def mean_square(z):
    return (z * z).mean()


def network():
    torch.manual_seed(0)
    shared = nn.Linear(12, 12)
    return nn.Sequential(
        nn.Linear(12, 12), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.BatchNorm1d(12), Residual(shared), shared,
        nn.GELU(), nn.Dropout(0.5), Residual(shared), nn.LayerNorm(12), nn.Identity(),
    )  # fmt: skip


def steps_of(model):
    return [*model, Doubled.apply, mean_square]


def eager(steps, x):
    torch.manual_seed(7)
    z = x
    for step in steps:
        z = step(z)
    z.backward()
    return z.detach(), torch.rand(3)


def bits_are_eagers(steps, model, order):
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    x = torch.randn(8, 12, generator=torch.Generator().manual_seed(1)).requires_grad_()
    model.zero_grad()
    value, drawn = eager(steps, x)
    after = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    torch.manual_seed(7)
    found = differentiate(steps, x, order)
    assert torch.equal(torch.rand(3), drawn), "the generator stands where eager leaves it"
    assert torch.equal(found.output, value) and torch.equal(found.input_gradient, x.grad)
    for name, parameter in model.named_parameters():
        assert torch.equal(found.of(parameter), parameter.grad), name
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, after[name]), name
    assert len(found.gradients) == len(list(model.parameters()))
    assert found.peak_states == found.reversal.peak_slots
    assert found.forward_evaluations == found.reversal.forward_evaluations
    return found


ORDERS = [
    save_all,
    recompute_all,
    lambda n: uniform_segments(n, 4),
    *(lambda n, s=s: binomial(n, s) for s in (2, 3, 5)),
]


@pytest.mark.parametrize("order", ORDERS)
def test_every_schedule_gives_eagers_bits(order):
    model = network()
    steps = steps_of(model)
    bits_are_eagers(steps, model, order(len(steps)))


def legal_orders(length, slots):
    """Any legal order at all, drawn move by move."""

    @st.composite
    def draw_order(draw):
        moves, stored, at_hand, step = [], {0}, 0, length
        while step:
            if step - 1 in stored or step - 1 == at_hand:
                moves.append(Reverse(step))
                step -= 1
                continue
            start = draw(st.sampled_from(sorted(s for s in stored | {at_hand} if s < step - 1)))
            at_hand = draw(st.integers(start + 1, step - 1))
            moves.append(Advance(start, at_hand))
            if len(stored) == slots and len(stored) > 1 and draw(st.booleans()):
                gone = draw(st.sampled_from(sorted(stored - {0})))
                stored.discard(gone)
                moves.append(Free(gone))
            if len(stored) < slots and at_hand not in stored and draw(st.booleans()):
                stored.add(at_hand)
                moves.append(Store(at_hand))
            if len(moves) > 150:  # wandering: straight to the end
                start = max(s for s in stored if s <= step - 1)
                if start < step - 1:
                    moves.append(Advance(start, step - 1))
                    at_hand = step - 1
        return moves

    return draw_order()


@settings(max_examples=25)
@given(st.data())
def test_any_legal_order_gives_eagers_bits(data):
    model = network()
    steps = steps_of(model)
    slots = data.draw(st.integers(1, 4))
    order = data.draw(legal_orders(len(steps), slots))
    bits_are_eagers(steps, model, order)


def test_slots_choose_the_binomial_order_and_nothing_stores_all():
    steps = [torch.sin] * 9 + [torch.sum]
    x = torch.randn(5, requires_grad=True)
    found = differentiate(steps, x, slots=3)
    assert found.reversal.name == "binomial, 3 slots" and found.peak_states == 3
    assert found.peak_bytes == 3 * x.nbytes and found.forward_evaluations == 15
    assert differentiate(steps, x).forward_evaluations == 9


def test_a_given_gradient_of_the_output():
    x = torch.randn(4, requires_grad=True)
    given = torch.randn(4)
    found = differentiate([torch.sin, torch.exp], x, slots=1, gradient=given)
    (truth,) = torch.autograd.grad(x.sin().exp(), x, given)
    assert torch.equal(found.input_gradient, truth)


def test_an_input_of_whole_numbers_has_no_gradient_and_parameters_have():
    table, line = nn.Embedding(5, 3), nn.Linear(3, 1)
    steps = [table, line, torch.sum]
    x = torch.tensor([1, 3, 3])
    found = differentiate(steps, x, slots=1)
    line(table(x)).sum().backward()
    assert found.input_gradient is None
    assert torch.equal(found.of(table.weight), table.weight.grad) and torch.equal(found.of(line.bias), line.bias.grad)
    assert found.of(torch.ones(1)) is None


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("cut", [False, True])
def test_steps_may_read_the_input_of_the_chain_again(slots, cut):
    x = torch.randn(6, requires_grad=True)
    steps = [
        lambda z: z.sin() + 0.3 * x + z * x, torch.exp, lambda z: z.detach() if cut else z, lambda z: z * x + x.cos(),
        torch.tanh, lambda z: (z * x).sum(),
    ]  # fmt: skip
    found = differentiate(steps, x, slots=slots)
    z = x
    for step in steps:
        z = step(z)
    z.backward()
    assert torch.equal(found.input_gradient, x.grad) and found.gradients == ()


@pytest.mark.parametrize("step", [nn.Identity(), nn.Flatten(), lambda x: x])
def test_a_step_that_does_nothing(step):
    x = torch.ones(2, 3, requires_grad=True)
    found = differentiate([step, torch.exp, step, torch.sum], x, slots=2)
    assert torch.equal(found.input_gradient, x.detach().exp()) and found.gradients == ()
    only = differentiate([step], x, gradient=2 * torch.ones(2, 3))
    assert torch.equal(only.input_gradient, 2 * torch.ones(2, 3)) and only.gradients == ()


def test_a_chain_that_is_cut_gives_what_eager_gives():
    line, other = nn.Linear(3, 3), nn.Linear(3, 1)
    steps = [line, torch.Tensor.detach, other, torch.sum]
    x = torch.randn(2, 3, requires_grad=True)
    found = differentiate(steps, x, slots=2)
    assert found.input_gradient is None and found.of(line.weight) is None and found.of(other.weight) is not None


def test_gradients_accumulate_as_backward_does():
    line = nn.Linear(3, 1)
    x = torch.randn(2, 3)
    for _ in range(2):
        differentiate([line, torch.sum], x).accumulate()
    twice = line.weight.grad.clone()
    line.zero_grad()
    for _ in range(2):
        line(x).sum().backward()
    assert torch.equal(twice, line.weight.grad)


def test_states_that_overlap_in_memory_are_not_copied():
    steps = [lambda x: x.expand(4, 3), torch.sin, torch.sum]
    x = torch.randn(1, 3, requires_grad=True)
    found = differentiate(steps, x, slots=1)
    steps[1](steps[0](x)).sum().backward()
    assert torch.equal(found.input_gradient, x.grad)


def test_an_illegal_order_runs_nothing():
    def never(x):
        raise AssertionError

    with pytest.raises(ReversalError):
        differentiate([never, never], torch.ones(1), [Reverse(2)])


def test_an_exception_of_a_step_passes_and_generators_are_left_in_order():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        differentiate([torch.sin, fails], torch.ones(1, requires_grad=True))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "no functions"),
        ([torch.sin], r"shape \(3,\)"),
        ([lambda x: (x, x)], "step 1 returned tuple"),
        ([lambda x: x.detach(), torch.sum], "depends on nothing"),
    ],
)
def test_what_is_no_chain_is_refused(steps, words):
    with pytest.raises(ChainError, match=words) as caught:
        differentiate(steps, torch.ones(3, requires_grad=True))
    assert caught.value.remedy


def test_a_tensor_computed_outside_the_chain_is_refused():
    outside = torch.ones(3, requires_grad=True).exp()
    with pytest.raises(ChainError, match="step 2 reads a tensor that was computed"):
        differentiate([torch.sin, lambda x: x * outside, torch.sum], torch.ones(3, requires_grad=True))


def test_a_gradient_hook_is_refused():
    line = nn.Linear(3, 1)
    line.weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(ChainError, match="hook"):
        differentiate([line, torch.sum], torch.ones(2, 3))


def under_autocast(cache_enabled):
    return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache_enabled)


@pytest.mark.parametrize("cache_enabled", [True, False])
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_autocast_gives_eagers_bits(cache_enabled, slots):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 1), nn.Flatten(0))
    steps = [*model, torch.sum]
    x = torch.randn(4, 8, requires_grad=True)
    with under_autocast(cache_enabled):
        torch.manual_seed(1)
        value = model(x).sum()
        torch.manual_seed(1)
        found = differentiate(steps, x, slots=slots)
    value.backward()
    assert torch.equal(found.output, value.detach()) and torch.equal(found.input_gradient, x.grad)
    for parameter in model.parameters():
        assert torch.equal(found.of(parameter), parameter.grad)


def test_shared_parameters_under_autocast_need_its_cache_off():
    line = nn.Linear(8, 8)
    steps = [line, line, torch.sum]
    x = torch.randn(4, 8)
    with under_autocast(True), pytest.raises(ChainError, match="autocast keeps its casts"):
        differentiate(steps, x, slots=1)
    with under_autocast(False):
        line(line(x)).sum().backward()
        assert torch.equal(differentiate(steps, x, slots=1).of(line.weight), line.weight.grad)


def test_it_prints():
    text = str(differentiate([torch.sin, torch.sum], torch.ones(3, requires_grad=True)))
    assert text.startswith(
        "gradients of 0 tensors; at most 2 states (24 bytes) stored at once; 1 forward evaluations\n"
    )
