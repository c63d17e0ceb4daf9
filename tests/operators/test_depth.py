"""Proposition 4.3: the depth of decomposition rules, cycles by name, and the rules that really apply."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.capture.tracer import trace
from staxlab.errors import TransformError
from staxlab.loops.lowering import basis
from staxlab.operators.decompositions import DECOMPOSITIONS
from staxlab.operators.depth import (
    BASIS,
    NO_RULE,
    RULE,
    CyclicRulesError,
    depths,
    expansion,
    expansions,
    find_cycle,
)
from staxlab.operators.observe import COMPOSITE, OWN, TABLE, WRITE, observe, observed_parts
from staxlab.operators.record import record
from staxlab.transform.decompose import EXPANSIONS
from staxlab.transform.patterns import Apply

aten = torch.ops.aten
EXERCISE_7 = {"o1": ("o2", "o3"), "o2": ("o1", "c")}


def brute_force(rules, base, operator, left):
    """The depth as Proposition 4.3 defines it, or None where unfolding ``left`` levels does not end."""
    if operator in base or operator not in rules:
        return 0
    if left == 0:
        return None
    parts = [brute_force(rules, base, part, left - 1) for part in rules[operator]]
    return None if None in parts else 1 + max(parts, default=0)


LETTERS = "abcdef"
tables = st.dictionaries(st.sampled_from(LETTERS), st.lists(st.sampled_from(LETTERS), max_size=3), max_size=5)
bases = st.sets(st.sampled_from(LETTERS), max_size=3)


@given(tables, bases)
def test_depths_are_those_of_the_definition_and_exist_unless_there_is_a_cycle(rules, base):
    wanted = {one: brute_force(rules, base, one, len(LETTERS) + 1) for one in rules}
    if None not in wanted.values():
        found = depths(rules, base)
        assert {one: found[one] for one in rules} == wanted
        assert find_cycle(rules, base) is None
        return
    with pytest.raises(CyclicRulesError) as caught:
        depths(rules, base)
    cycle = caught.value.cycle
    assert cycle == find_cycle(rules, base)
    assert cycle[0] == cycle[-1] and len(set(cycle)) == len(cycle) - 1, "once around"
    assert all(after in rules[before] and before not in base for before, after in zip(cycle, cycle[1:], strict=False))
    # Any operator of the cycle in the basis breaks it.
    for one in cycle:
        again = find_cycle(rules, base | {one})
        assert again is None or set(again) != set(cycle)


@given(tables, bases)
@settings(max_examples=50)
def test_a_tree_ends_in_the_basis_or_without_a_rule(rules, base):
    if find_cycle(rules, base) is not None:
        return
    for one in rules:
        tree = expansion(rules, base, one)
        assert tree.depth == depths(rules, base)[one]
        assert all(leaf in base or leaf not in rules or not rules[leaf] for leaf in tree.leaves)


def test_exercise_7():
    with pytest.raises(TransformError, match="o1 => o2 => o1") as caught:
        depths(EXERCISE_7)
    assert caught.value.cycle == ("o1", "o2", "o1") and "basis" in caught.value.remedy
    found = depths(EXERCISE_7, {"o2"})
    assert found == {"o1": 1, "o2": 0, "o3": 0}, "c is not reached any more"
    assert expansion(EXERCISE_7, {"o2"}, "o1").leaves == ("o2", "o3")
    with pytest.raises(CyclicRulesError):
        expansion(EXERCISE_7, (), "o1")


def test_an_operator_that_is_its_own_part_is_a_cycle_and_one_not_reached_is_none():
    assert find_cycle({"a": ["a"]}) == ("a", "a")
    assert find_cycle({"a": ["b"], "x": ["y"], "y": ["x"]}) == ("x", "y", "x")
    assert expansion({"a": ["b"], "x": ["y"], "y": ["x"]}, (), "a").depth == 1, "another operator's trouble"


def test_a_long_chain_needs_no_recursion():
    length = 3 * sys.getrecursionlimit()
    assert depths({k: [k + 1] for k in range(length)})[0] == length
    assert len(find_cycle({k: [(k + 1) % length] for k in range(length)})) == length + 1


def test_the_work_is_linear_where_paths_are_exponentially_many():
    """60 levels of two operators that both need both of the next: 2^60 paths."""
    rules = {f"{side}{k}": [f"l{k + 1}", f"r{k + 1}"] for k in range(60) for side in "lr"}
    assert depths(rules)["l0"] == 60


# -- the rules that apply --------------------------------------------------------------------------------------------


COMMON = [
    aten.mse_loss.default, aten.cross_entropy_loss.default, aten.nll_loss_forward.default, aten.glu.default,
    aten.huber_loss.default, aten.elu_backward.default, aten.logit_backward.default, aten.pixel_shuffle.default,
    aten.channel_shuffle.default, aten.std.default, aten.add_.Tensor, aten.add.out, aten.layer_norm.default,
    aten.silu.default, aten.dropout.default,
]  # fmt: skip


@pytest.fixture(scope="module")
def common():
    return observe(basis(), COMMON)


def test_rules_apply_outside_the_basis_only(common):
    assert "aten.silu.default" not in common.rules, "it has a lowering"
    assert "aten.dropout.default" not in common.rules or "aten.native_dropout.default" in str(common.rules)
    assert set(common.rules["aten.mse_loss.default"]) == {"aten.sub.Tensor", "aten.mul.Tensor", "aten.mean.default"}
    kinds = {common.kinds[name] for name in common.rules}
    assert kinds == {OWN, TABLE, COMPOSITE, WRITE}
    assert not common.unobserved


def test_depths_of_known_operators(common):
    assert common.depths["aten.mse_loss.default"] == 1
    assert common.depths["aten.cross_entropy_loss.default"] == 2, "through nll_loss_forward"
    assert common.depths["aten.add_.Tensor"] == 1, "its functional twin is in the basis"
    tree = common.expansion("aten.cross_entropy_loss.default")
    assert tree.depth == 2 and "aten.nll_loss_forward.default" in [part.operator for part in tree.parts]
    assert "└──" in tree.format() and "depth 2" in tree.format().splitlines()[0]
    assert "rules outside a basis" in str(common)


def test_a_cyclic_rule_is_found_and_named():
    rules = {
        aten.mse_loss.default: lambda x, y, reduction=1: aten.huber_loss.default(x, y),
        aten.huber_loss.default: lambda x, y, reduction=1, delta=1.0: aten.mse_loss.default(x, y) * 2,
    }
    table = observe(basis(), list(rules), rules=rules)
    with pytest.raises(CyclicRulesError, match="aten.mse_loss.default => aten.huber_loss.default => aten.mse_loss"):
        _ = table.depths
    inside = observe(basis() | {aten.huber_loss.default}, list(rules), rules=rules)
    assert inside.depths["aten.mse_loss.default"] == 1


def test_a_rule_that_never_runs_is_unobserved_not_empty():
    def broken(*args, **kwargs):
        raise RuntimeError

    assert observed_parts(aten.mse_loss.default, broken) is None
    table = observe(frozenset(), [aten.mse_loss.default], rules={aten.mse_loss.default: broken})
    assert table.unobserved == ("aten.mse_loss.default",) and not table.rules


def test_our_own_rules_have_depths():
    table = observe(basis(), list(DECOMPOSITIONS))
    assert set(table.rules) <= set(table.depths), "no cycle"
    assert not table.unobserved and {table.kinds[name] for name in table.rules} == {OWN}


def operations_of(expression):
    if not isinstance(expression, Apply):
        return set()
    parts = [*expression.args, *(value for _, value in expression.kwargs)]
    return {expression.operation}.union(*map(operations_of, parts))


def test_front_end_expansions_end_in_primitives():
    """What Proposition 4.1 needs of decomposition: its parts are never taken apart again."""
    rules = {name: sorted(operations_of(make())) for name, make in EXPANSIONS.items()}
    assert {depths(rules)[name] for name in rules} == {1}
    assert "expm1" in rules["selu"] and find_cycle(rules) is None


@pytest.mark.slow
def test_all_rules_have_a_depth():
    """At least five hundred rules, four hundred of them no writes, and no cycle among any of them. (Operators that the
    back end has rules or library calls for, the adjoints among them, need no decomposition.)"""
    table = observe(basis())
    functional = [name for name in table.rules if table.kinds[name] != WRITE]
    assert len(table.rules) >= 500 and len(functional) >= 400
    assert set(table.rules) <= set(table.depths) and max(table.depths.values()) <= 8
    assert all(table.depths[name] >= 1 for name in table.rules)
    assert not set(table.rules) & table.basis
    assert sum(map(len, table.by_depth.values())) == len(table.rules)


# -- what was taken apart in a recording -----------------------------------------------------------------------------


def recorded(function, *inputs):
    return record(trace(function, inputs, {}).module, list(inputs), basis=basis())


def test_the_tree_of_a_recording():
    graph = recorded(F.mse_loss, torch.rand(4), torch.rand(4))
    (tree,) = expansions(graph, basis())
    assert tree.operator == "aten.mse_loss.default" and tree.depth == 1 and tree.kind == RULE
    assert [(part.operator, part.nodes) for part in tree.parts] == [
        ("aten.sub.Tensor", ("sub",)), ("aten.mul.Tensor", ("mul",)), ("aten.mean.default", ("mean",)),
    ]  # fmt: skip
    assert {part.kind for part in tree.parts} == {BASIS}
    assert expansions(graph, basis() - {aten.mean.default})[0].parts[-1].kind == NO_RULE


def test_rules_inside_rules_and_the_same_rule_twice():
    """``outer`` uses ``inner``, which stands beside it as well: two trees, one inside the other."""
    from staxlab.operators.graph import Decomposed, OperatorGraph

    graph = recorded(lambda x: ((x + 1) * 2 - 3).exp(), torch.rand(3))
    names = [node.name for node in graph.graph.calls]
    log = (
        Decomposed("inner", tuple(names[0:2])),
        Decomposed("outer", tuple(names[0:3])),
        Decomposed("inner", tuple(names[3:4])),
    )
    outer, inner = expansions(OperatorGraph(graph.module, graph.inputs, decomposed=log), basis())
    assert (outer.operator, outer.depth, inner.operator, inner.depth) == ("outer", 2, "inner", 1)
    assert [part.operator for part in outer.parts] == ["inner", "aten.sub.Tensor"]


def test_nothing_was_taken_apart():
    assert expansions(recorded(lambda x: x + 1, torch.rand(3)), basis()) == ()


def test_a_rule_that_leads_back_to_its_operator_is_refused_while_recording(monkeypatch):
    rules = {
        aten.mse_loss.default: lambda x, y, reduction=1: aten.huber_loss.default(x, y),
        aten.huber_loss.default: lambda x, y, reduction=1, delta=1.0: aten.mse_loss.default(x, y),
    }
    monkeypatch.setattr("staxlab.operators.record.decomposition_of", rules.get)
    inputs = (torch.rand(3), torch.rand(3))
    with pytest.raises(CyclicRulesError, match="aten.mse_loss.default => aten.huber_loss.default => aten.mse_loss"):
        recorded(F.mse_loss, *inputs)
