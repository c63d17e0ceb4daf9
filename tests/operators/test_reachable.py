"""At least five hundred decomposition rules are reachable, and those that operator samples meet really expand.

*Reachable* is a rule for an overload that the dispatcher can hand to the recorder, that is outside the basis and draws
no random numbers, and whose expansion ends in the basis (``DecompositionTable.reachable``). Counted are the compiler's
own rules, those of PyTorch's table, and writes that become their functional twin. Bodies of composite operators are
left out of the count: outside of inference mode the dispatcher takes those apart before the recorder sees them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._decomp import decomposition_table

from staxlab.loops.lowering import basis
from staxlab.operators.basis import is_random
from staxlab.operators.observe import COMPOSITE, OWN, TABLE, WRITE, DecompositionTable, observe
from staxlab.operators.record import Recorder
from tests.loops.lowered import operators_of
from tests.loops.opinfo import copy_of, operators_database, samples
from tests.operators.test_depth import COMMON

aten = torch.ops.aten


@pytest.fixture(scope="module")
def table():
    return observe(basis())


def overload(name):
    _, packet, which = name.split(".")
    return getattr(getattr(aten, packet), which)


def test_at_least_five_hundred_rules_are_reachable(table):
    counts = Counter(table.kinds[name] for name in table.reachable)
    assert counts[OWN] + counts[TABLE] + counts[WRITE] >= 500, counts
    listed = {str(func) for func in decomposition_table}
    counted = [name for name in table.reachable if name in listed and table.kinds[name] != COMPOSITE]
    assert len(counted) >= 500, "PyTorch's own table, without what the basis makes superfluous"
    assert f"{sum(counts.values())} end in the basis" in str(table)


def test_reachable_means_what_it_says(table):
    for name in table.reachable:
        func = overload(name)
        assert func not in basis() and not is_random(func), name
        assert set(table.expansion(name).leaves) <= table.basis, name
    missing = set(table.rules) - set(table.reachable)
    assert all(not set(table.expansion(name).leaves) <= table.basis for name in missing)


def test_a_rule_with_a_part_that_nothing_implements_is_not_reachable():
    rules = {"loss": ("sub", "mean"), "mean": ("sum",), "other": ("loss", "odd"), "deeper": ("other",), "empty": ()}
    table = DecompositionTable(rules, dict.fromkeys(rules, TABLE), (), frozenset({"sub", "sum"}))
    assert table.reachable == ("loss", "mean", "empty")


def handed_and_left(op, sample, monkeypatch):
    """The overloads that the dispatcher hands to the recorder for one sample, those left in the graph, and the graph;
    None for a sample that eager execution refuses."""
    handed = set()
    original = Recorder.__torch_dispatch__

    def listening(self, func, types, args=(), kwargs=None):
        handed.add(str(func))
        return original(self, func, types, args, kwargs)

    tensors = [t for t in (sample.input, *sample.args) if isinstance(t, torch.Tensor)]

    def function(*given):
        left = iter(given)
        first, *rest = (next(left) if isinstance(v, torch.Tensor) else v for v in (sample.input, *sample.args))
        return op(first, *rest, **sample.kwargs)

    try:
        function(*(copy_of(t) for t in tensors))
    except Exception:  # eager execution refuses it: a result that does not fit where it is to be written
        return None
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "__torch_dispatch__", listening)
        graph = operators_of(function, *(copy_of(t) for t in tensors))
    return handed, {str(node.target) for node in graph.graph.calls}, graph


def expanded(table, ops, monkeypatch):
    """Reachable overloads that samples handed over: (those that expanded, those that were left whole)."""
    reachable = set(table.reachable)
    gone, whole = set(), {}

    def run():
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            for entry in ops:
                for variant in (entry.op, entry.inplace_variant):
                    for sample in first_samples(entry):
                        if variant is None or (seen := handed_and_left(variant, sample, monkeypatch)) is None:
                            continue
                        handed, left, graph = seen
                        if graph.obstacles:
                            continue
                        gone.update((handed & reachable) - left)
                        whole.update(dict.fromkeys(handed & reachable & left, entry.name))

    with ThreadPoolExecutor(1) as pool:  # the database looks at the whole stack, and a test runner's is deep
        pool.submit(run).result()
    return gone, whole


def first_samples(entry, count=2):
    try:
        found = []
        for sample in samples(entry, torch.float32, count):
            leaves = [sample.input, *sample.args, *sample.kwargs.values()]
            if all(t.layout == torch.strided for t in leaves if isinstance(t, torch.Tensor)):
                found.append(sample)
        return found[: 2 * count]
    except Exception:  # samples that need a package that is not here
        return []


def usable(entry):
    return torch.float32 in entry.supported_dtypes("cpu") and "sparse" not in entry.name


def with_variants():
    return [entry for entry in operators_database() if usable(entry) and entry.op is not None]


# A rule may refuse some arguments (other strides than the operator's, an odd reduction); then the operator is recorded
# whole, on that sample. Few do.
MOSTLY = 0.9


def test_a_sampled_part_really_expands(table, monkeypatch):
    names = {"nn.functional.mse_loss", "nn.functional.huber_loss", "nn.functional.glu", "nn.functional.pixel_shuffle",
             "nn.functional.binary_cross_entropy_with_logits", "add", "mul", "exp", "relu", "sigmoid", "clamp",
             "nn.functional.elu", "lerp", "addcmul"}  # fmt: skip
    ops = [entry for entry in with_variants() if entry.name in names]
    gone, whole = expanded(table, ops, monkeypatch)
    assert {"aten.mse_loss.default", "aten.huber_loss.default", "aten.glu.default", "aten.add_.Tensor",
            "aten.exp_.default", "aten.addcmul_.default"} <= gone  # fmt: skip
    assert not set(map(str, COMMON)) & set(whole)


@pytest.mark.slow
def test_most_of_what_all_samples_meet_expands(table, monkeypatch):
    gone, whole = expanded(table, with_variants(), monkeypatch)
    assert len(gone) >= 150, len(gone)
    assert len(gone - set(whole)) >= MOSTLY * len(gone | set(whole)), whole
