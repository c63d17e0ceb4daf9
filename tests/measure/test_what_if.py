"""Realization and what-if: the program relowered with other decisions, what that costs, and that no value changes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.errors import OptionError
from staxlab.loops.lowering import lower
from staxlab.loops.realize import Cost, Rates, decide, model_choice, model_seconds, rates
from staxlab.loops.semantics import evaluate
from staxlab.measure.what_if import CHOICES, MOST_TOGETHER, realization_table, what_if
from staxlab.options import GPU_SPECS, host_device_spec


def example_7_2(x):
    return x.exp().sum(-1), x.exp().amax(-1)


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def three_shared(x, y):
    a, b = (x * y).sigmoid(), (x + y).tanh()
    c = a - b
    return a.sum(-1) + b.sum(-1), c.amax(-1), (c * a).sum(0)


def explained(function, *shapes, target="cpu", dtype=torch.float32, **options):
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=dtype) for shape in shapes]
    return staxlab.explain(function, *inputs, target=target, options=options), inputs


def same_bits(one, other) -> bool:
    return all(
        torch.equal(a.reshape(-1).contiguous().view(torch.uint8), b.reshape(-1).contiguous().view(torch.uint8))
        for a, b in zip(one, other, strict=True)
    )


# -- Theorem 6.1 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(example_7_2, [(9, 33)]), (example_1_1, [(5, 40), (5, 40)]), (three_shared, [(7, 33), (33,)])],
)
def test_every_combination_computes_the_same_bits(function, shapes):
    compilation, inputs = explained(function, *shapes)
    table = realization_table(compilation)
    assert table.together and len(table.outcomes) == 2 ** len(table.decisions) >= 2
    first, *others = [outcome.call(inputs) for outcome in table.outcomes]
    assert same_bits(first, compilation.call(inputs))
    assert all(same_bits(first, other) for other in others)


STEPS = (
    torch.add, torch.sub, torch.mul, torch.maximum, lambda a, _: a.t(), lambda a, _: a.relu(), lambda a, _: a.sigmoid(),
    lambda a, _: a.flip(0), lambda a, b: a - b.sum(-1, keepdim=True), lambda a, b: torch.where(a > b, a, b * 2),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=8)
)
def test_every_outcome_of_a_random_program_means_the_same(steps):
    """By the reference semantics, which needs no compiler: every combination, or every single change, bit for bit."""

    def program(x, y):
        values = [x, y]
        for number, one, other in steps:
            values.append(STEPS[number](values[one % len(values)], values[other % len(values)]))
        return values[-1].sum(-1), values[-1].amax(0), values[-2].sum()

    compilation, inputs = explained(program, (4, 4), (4, 4), target="sm_90")
    table = realization_table(compilation)
    names = [buffer.name for buffer in compilation.loops.inputs]
    placeholders = [node.name for node in compilation.operators.graph.placeholders]
    given = {name: inputs[placeholders.index(name)] for name in names}
    first, *others = [evaluate(outcome.loops, given) for outcome in table.outcomes]
    assert all(same_bits(first, other) for other in others)


def test_half_precision_is_the_exception():
    """A bfloat16 value that is stored is rounded once more: realization is then no identity."""
    compilation, inputs = explained(lambda x: ((x * 1.01 + x).sum(-1),), (4, 64), dtype=torch.bfloat16)
    asked = what_if(compilation, {"mul": "realize"})
    assert not same_bits(asked.before.call(inputs), asked.after.call(inputs))


# -- what is asked for is what comes out -------------------------------------------------------------------------------


def test_example_7_2_on_both_devices():
    """One kernel fewer and half the traffic without exp in memory; a GPU inlines it of itself."""
    N, n = 64 * 128, 64
    cpu, _ = explained(example_7_2, (64, 128), fuse=False)
    asked = what_if(cpu, {"exp": "inline"})
    assert (len(asked.before.kernels), len(asked.after.kernels)) == (3, 2)
    assert asked.before.traffic.elements == 4 * N + 2 * n and asked.after.traffic.elements == 2 * N + 2 * n
    assert asked.before.kernel_names == tuple(k.name for k in cpu.kernels)
    assert [k.source for k in asked.before.kernels] == [k.source for k in cpu.kernels]
    fused, _ = explained(example_7_2, (64, 128))  # one kernel either way, which keeps exp in the row
    asked = what_if(fused, {"exp": "inline"})
    assert (len(asked.before.kernels), len(asked.after.kernels)) == (1, 1)
    assert asked.before.traffic.elements == asked.after.traffic.elements == N + 2 * n
    gpu, _ = explained(example_7_2, (64, 128), target="sm_90", fuse=False)
    asked = what_if(gpu, {"exp": "realize"})
    assert (asked.before.buffers, asked.after.buffers) == (2, 3)
    assert "libdevice.exp" in asked.after.kernels[0].source and "libdevice" not in asked.after.kernels[1].source
    with pytest.raises(OptionError, match="sm_90"):
        asked.after.call([torch.randn(64, 128)])


def test_the_table_starts_with_the_compilation_and_knows_its_alternatives():
    compilation, _ = explained(three_shared, (7, 33), (33,), fuse=False)  # one kernel moves the same either way
    table = realization_table(compilation)
    assert table.values == ("sigmoid", "tanh", "sub")
    assert [d.choice for d in table.decisions] == [table.outcomes[0].chosen(v) for v in table.values]
    assert table.outcomes[0].kernel_names == tuple(k.name for k in compilation.kernels)
    every = {outcome.choices for outcome in table.outcomes}
    assert len(every) == 8
    inlined = table.outcome(sigmoid="inline", tanh="inline", sub="inline")
    stored = table.outcome(sigmoid="realize", tanh="realize", sub="realize")
    assert inlined.buffers + 3 == stored.buffers
    assert inlined.traffic.nbytes < stored.traffic.nbytes and inlined.traffic.operations > stored.traffic.operations
    with pytest.raises(KeyError):
        table.outcome(sigmoid="neither")
    text = str(table)
    assert "rule 1: sigmoid" in text and "(as compiled)" in text and "amax (a amax reduction)" in text


def test_many_values_are_changed_one_at_a_time():
    def many(x):
        parts = [(x * k).tanh() for k in range(2, 3 + MOST_TOGETHER)]
        return [p.sum(-1) for p in parts], [p.amax(-1) for p in parts]

    table = realization_table(explained(many, (3, 8))[0])
    count = MOST_TOGETHER + 1
    assert not table.together and len(table.decisions) == count and len(table.outcomes) == count + 1
    base = dict(table.outcomes[0].choices)
    for outcome in table.outcomes[1:]:
        assert sum(base[name] != choice for name, choice in outcome.choices) == 1


def test_values_with_one_user_can_be_named():
    compilation, inputs = explained(example_1_1, (5, 40), (5, 40))
    assert not [d for d in compilation.loops.decisions if len(d.candidates) > 1]  # none is listed of itself
    assert realization_table(compilation).values == ("add", "relu", "mul")
    table = realization_table(compilation, ["relu"])
    assert len(table.outcomes) == 2 and table.outcome(relu="realize").buffers == 2
    assert not table.disagreements and table.best is table.outcomes[0]


def test_what_cannot_be_asked_is_refused():
    compilation, _ = explained(example_7_2, (4, 8))
    with pytest.raises(OptionError, match="sum must be in memory: a sum reduction"):
        what_if(compilation, {"sum": "inline"})
    with pytest.raises(OptionError, match="did you mean 'exp'"):
        what_if(compilation, {"expp": "inline"})
    with pytest.raises(OptionError, match="did you mean 'inline'"):
        what_if(compilation, {"exp": "inlined"})
    with pytest.raises(OptionError, match="ends before"):
        what_if(staxlab.explain(example_7_2, torch.randn(4, 8), backend="aot_eager"), {"exp": "inline"})


def test_asking_changes_nothing():
    compilation, _ = explained(three_shared, (7, 33), (33,))
    again = lower(compilation.operators, compilation.device, compilation.options)
    assert str(again) == str(compilation.loops) and again.decisions == compilation.loops.decisions
    realization_table(compilation)
    assert str(lower(compilation.operators, compilation.device, compilation.options)) == str(again)


def test_both_halves_of_a_training_region():
    compiled = staxlab.compile(lambda x, w: (x @ w).tanh().mul(w.sum(0).sigmoid()).sum())
    compiled(torch.randn(3, 8), torch.randn(8, 8, requires_grad=True)).backward()
    training = compiled.versions[0].compilation
    for half in (training, training.backward):
        table = realization_table(half)
        assert table.outcomes[0].kernel_names == tuple(k.name for k in half.kernels)


def test_tensors_the_graph_holds_are_further_inputs():
    def f(x):
        h = (x * torch.tensor([0.5, 1.5, -2.0])).sigmoid()
        return h.sum(-1), h.amax(-1)

    compilation, inputs = explained(f, (4, 3))
    table = realization_table(compilation, ["sigmoid"])
    wanted = f(*inputs)
    for outcome in table.outcomes:
        for one, other in zip(outcome.call(inputs), wanted, strict=True):
            torch.testing.assert_close(one, other)


# -- the model ---------------------------------------------------------------------------------------------------------

COST = Cost(1, 1, 1, frozenset(), elements=1000, work=10, read_bytes=4.0, stored_bytes=4)


@settings(max_examples=200)
@given(st.integers(1, 20), st.integers(0, 500), st.floats(0, 64), st.sampled_from([1, 2, 4, 8]))
def test_the_difference_is_that_of_the_formula(users, work, read, stored):
    """Realizing wins exactly if (k - 1)(c/P + q/B) exceeds (1 + k) b/B; with one user it never does."""
    rate = Rates(2e11, 3e10, "made up")
    cost = dataclasses.replace(COST, work=work, read_bytes=read, stored_bytes=stored)
    inlined, realized = model_seconds(users, cost, rate)
    N, c, q, b = cost.elements, work / rate.throughput, read / rate.bandwidth, stored / rate.bandwidth
    assert inlined == pytest.approx(users * N * (c + q)) and realized > 0
    assert inlined - realized == pytest.approx(N * ((users - 1) * (c + q) - (1 + users) * b), rel=1e-6, abs=1e-12)
    assert users > 1 or inlined < realized


def test_a_decision_carries_both_costs_and_the_model_may_disagree():
    device = host_device_spec()
    exp = dataclasses.replace(COST, functions=frozenset({"exp"}))
    decision = decide("h", 2, exp, device)
    assert decision.choice == "realize" and model_choice(decision) == "inline"
    facts = dict(decision.inputs)
    assert facts["N"] == 1000 and (facts["c"], facts["q"], facts["b"]) == (10, 4.0, 4)
    assert facts["seconds inlined"] == pytest.approx(model_seconds(2, exp, rates(device))[0], rel=1e-2)
    gpu = decide("h", 2, exp, GPU_SPECS["sm_90"])
    assert gpu.choice == model_choice(gpu) == "inline"
    assert model_choice(dataclasses.replace(gpu, inputs=())) is None


def test_rates_of_devices():
    assert rates(GPU_SPECS["sm_90"]) == Rates(67e12, 3.35e12, "data sheet of sm_90")
    half = dataclasses.replace(GPU_SPECS["sm_90"], nominal_bandwidth=0.0, multiprocessors=66)
    assert rates(half).bandwidth == pytest.approx(3.35e12 / 2)
    one = dataclasses.replace(host_device_spec(), threads=1)
    many = dataclasses.replace(one, threads=64)
    assert rates(many).throughput == 64 * rates(one).throughput and rates(many).bandwidth == 16 * rates(one).bandwidth


def test_measured_rates_can_be_given():
    compilation, _ = explained(example_7_2, (64, 128))
    slow = realization_table(compilation, rate=Rates(1e9, 1e12, "a slow processor"))
    assert slow.best is slow.outcomes[0], "computing once is best where computing is dear"
    assert CHOICES == ("inline", "realize") and "a slow processor" in str(slow)
