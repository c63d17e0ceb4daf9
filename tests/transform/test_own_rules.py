"""A rule from outside: applied where types and memory allow it, seen in the difference, refused if it might not end."""

from __future__ import annotations

import re

import pytest
import torch

import staxlab
from staxlab import view
from staxlab.errors import TransformError
from staxlab.options import Options
from staxlab.transform import Rule, Var, apply, transform
from tests.transform.graphs import I, X, operations
from tests.view.reading import read

x, y = Var("x"), Var("y")
TWICE = Rule("twice the negative", apply("neg", x) * -1, x)
ROOT = Rule("root of a square", apply("sqrt", x * x), apply("abs", x))


def rewritten(fn, *inputs, rules):
    return transform(staxlab.trace(fn, *inputs), rules=rules)


def test_a_students_rule_in_five_lines():
    from staxlab.transform import Rule, Var, apply, transform

    x = Var("x")
    rule = Rule("root of a square", apply("sqrt", x * x), apply("abs", x))
    log = transform(staxlab.trace(lambda a: torch.sqrt((a + 1) * (a + 1)), X), rules=[rule])

    assert operations(log.final) == ["operator.add", "abs"]
    (applied,) = next(run for run in log.changes if run.name == "OwnRules").applied
    assert applied.rule == "root of a square" and applied.law == "sqrt(x * x) -> abs(x)"
    assert applied.source.startswith(__file__) and len(applied.before) == 2 and len(applied.after) == 1
    assert torch.equal(log.final(X), (X + 1).abs())


def test_it_is_seen_in_the_difference():
    log = rewritten(lambda a: (-a.exp() * -1).sum(), X, rules=[TWICE])
    assert "OwnRules" in str(log) and "twice the negative: -x * -1 -> x" in str(log)
    page = read(view.html(log))
    (drawn,) = [e for e in page.find("pre") if e.attributes.get("aria-label") == "changes by OwnRules, round 1"]
    assert "−" in drawn.text and "neg" in drawn.text
    assert "twice the negative" in page.text


def test_without_rules_nothing_is_added():
    log = transform(staxlab.trace(lambda a: -a.exp() * -1, X))
    assert not any(run.name == "OwnRules" for run in log.runs) and len(log.final.graph.calls) == 3


def test_origins_of_all_that_was_matched_are_kept():
    capture = staxlab.trace(lambda a: torch.sqrt(a.exp() * a.exp()).sum(), X)
    log = transform(capture, rules=[ROOT])
    (absolute,) = [n for n in log.final.graph.calls if n.target == "abs"]
    matched = {n.id for n in capture.graph.calls if n.target_name().split(".")[-1] in ("sqrt", "mul")}
    assert matched <= absolute.origins and absolute.location is not None


KEPT = {
    "an output must not become an input": (lambda a: -a * -1, X, TWICE),
    "nor a view of one": (lambda a: -(a.t()) * -1, X, TWICE),
    "what is written is left alone": (lambda a: (lambda b: (b.add_(1), -b * -1, b.add_(1))[1])(a.exp()), X, TWICE),
    "another dtype": (lambda a: torch.sqrt(a * a), I, ROOT),
    "another shape": (lambda a: (a[0] + a).exp(), X, Rule("right operand", x + y, x)),
}


@pytest.mark.parametrize("name", KEPT)
def test_conditions_are_looked_after(name):
    fn, sample, rule = KEPT[name]
    log = rewritten(fn, sample, rules=[rule])
    assert not any(run.name == "OwnRules" for run in log.changes), str(log)
    assert torch.equal(log.final(sample.clone()), fn(sample.clone()))


def test_what_others_use_stays():
    def fn(a):
        square = a * a
        return torch.sqrt(square).sum(), square.sum()

    assert len(rewritten(fn, X, rules=[ROOT]).final.graph.calls) == 4  # nothing would be saved
    twice = rewritten(lambda a: (lambda b: (b * -1).sum() + b.sum())(-a.exp()), X, rules=[TWICE])
    assert [name.split(".")[-1] for name in operations(twice.final)] == ["exp", "neg", "sum", "sum", "add"]


def test_rules_meet_each_other_within_one_walk():
    def fn(a):
        for _ in range(3):
            a = torch.neg(a.exp()) * -1
        return a.sum()

    log = rewritten(fn, X / 4, rules=[TWICE])
    assert operations(log.final) == ["exp", "exp", "exp", "sum"] and len(log.changes[0].applied) == 3
    assert torch.equal(log.final(X / 4), fn(X / 4))


def test_a_rule_that_does_not_lower_the_measure_is_refused_by_name():
    swap = Rule("swap", x + y, y + x)
    with pytest.raises(TransformError, match=re.compile(r"OwnRules.*did not lower the measure.*swap", re.DOTALL)):
        rewritten(lambda a: (a.exp() + a.sin()).sum(), X, rules=[swap])


# -- rules that change what they replace -------------------------------------------------------------------------------

GRID = torch.linspace(-2, 2, 16).reshape(4, 4)
REFUSED = {
    "dtype": (lambda a: (a.exp() * 0.5 + 1).sum(), Rule("wider", x * 0.5 + 1, apply("double", x)),
              "changes the dtype: float32 became float64"),
    "shape": (lambda a: torch.sqrt(a.exp() * a.exp()).sum(), Rule("shorter", apply("sqrt", x * x), apply("sum", x)),
              r"changes the shape: \[4, 4\] became \[\]"),
    "strides": (lambda a: torch.sqrt(a.exp() * a.exp()).sum(), Rule("turned", apply("sqrt", x * x), apply("t", x)),
                r"changes the strides: \[4, 1\] became \[1, 4\]"),
    "aliasing": (lambda a: (a.exp() * 2 / 2).sum(), Rule("a view", x * 2 / 2, apply("detach", x)),
                 "changes aliasing: its result shares memory with x"),
    "values": (lambda a: torch.exp(torch.log(a.sin())).sum(), Rule("wrong", apply("exp", apply("log", x)),
                                                                   apply("neg", x)),
               r"changes values: at \[0, 0\] the sample gives 0.9\d+ in place of nan"),
    "values of a variable": (lambda a: torch.exp(torch.log(a.sin())).sum(),
                             Rule("wrong for some", apply("exp", apply("log", x)), x),
                             r"changes values: at \[0, 0\] the sample gives -0.9\d+ in place of nan"),
    "a write": (lambda a: (a.exp() + 1 + 1).sum(), Rule("in place", x + 1 + 1, apply("add_", x, 2)),
                "no pure function: add_ writes into its argument"),
    "a draw": (lambda a: (a.exp() * 2 / 2).sum(), Rule("noise", x * 2 / 2, apply("bernoulli", x, 0.5)),
               "no pure function: bernoulli draws random numbers"),
    "no tensor": (lambda a: (a.exp() * 2 / 2).sum(), Rule("a size", x * 2 / 2, apply("size", x)), "gives a Size"),
    "an error": (lambda a: (a.exp() * 2 / 2).sum(), Rule("no such view", x * 2 / 2, apply("view", x, 3)),
                 "cannot be computed: shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_replacement_that_changes_something_is_refused(name):
    fn, rule, words = REFUSED[name]
    with pytest.raises(TransformError, match=words) as caught:
        rewritten(fn, GRID, rules=[rule])
    said = str(caught.value)
    assert f"rule {rule.name!r}, {rule.law}" in said and re.search(r"refused at %\w+", said), "the rule and the node"
    assert rule.source in said and caught.value.where.file == __file__, "the rule's line and the user's"
    assert caught.value.where.line == fn.__code__.co_firstlineno and "where=" in caught.value.remedy


def test_refusing_leaves_the_capture_and_its_samples_alone():
    fn, rule, _ = REFUSED["a write"]
    sample = GRID.clone()
    capture = staxlab.trace(fn, sample)
    before, state = str(capture.graph), torch.get_rng_state()
    for one in (rule, REFUSED["a draw"][1]):
        with pytest.raises(TransformError):
            transform(capture if one is rule else staxlab.trace(REFUSED["a draw"][0], sample), rules=[one])
    assert str(capture.graph) == before and torch.equal(sample, GRID)
    assert torch.equal(torch.get_rng_state(), state), "nor are random numbers drawn"


def test_a_condition_makes_a_wrong_rule_right():
    positive = Rule(
        "log and exp", apply("exp", apply("log", x)), x, where=lambda node, bound: bound["x"].target == "exp"
    )
    log = rewritten(lambda a: (a.exp().log().exp() + torch.exp(torch.log(a.sin()))).sum(), GRID, rules=[positive])
    assert operations(log.final).count("log") + operations(log.final).count("torch.log") == 1


def test_rounding_is_no_change_of_values():
    square = Rule("square of a root", apply("sqrt", x) * apply("sqrt", x), x)
    log = rewritten(lambda a: (torch.sqrt(a.exp()) * torch.sqrt(a.exp())).sum(), GRID, rules=[square])
    assert operations(log.final) == ["exp", "sum"]


def test_new_nodes_carry_the_metadata_that_was_seen():
    """Inferred from the root, as for pointwise operations, the shape of a reduction would be wrong."""
    largest = Rule("largest", -apply("amin", -x), apply("amax", x))
    capture = staxlab.trace(lambda a: -torch.amin(-a.exp()) + 1, GRID)
    log = transform(capture, rules=[largest])
    (node,) = [n for n in log.final.graph.calls if n.target == "amax"]
    assert node.val.shape == () and node.val.dtype is torch.float32
    view_inside = Rule("sum of a transpose", apply("sum", apply("neg", -x)) + 0, apply("sum", apply("t", x)))
    log = rewritten(lambda a: torch.neg(torch.neg(a.exp())).sum() + 0, GRID, rules=[view_inside])
    for node in log.final.graph.calls:
        if node.target == "t":
            assert node.meta["aliases"] and node.val.stride == (1, 4)


def test_a_graph_without_samples_shows_all_but_values():
    for name, (fn, rule, words) in REFUSED.items():
        module = staxlab.trace(fn, GRID).module
        if name.startswith("values"):
            assert any(run.name == "OwnRules" for run in transform(module, rules=[rule]).changes)
        else:
            with pytest.raises(TransformError, match=words):
                transform(module, rules=[rule])


def test_what_is_written_elsewhere_is_not_run_again():
    """``h`` no longer holds what it held when ``s`` was computed: values cannot be compared, everything else can."""

    def fn(a):
        h = a.exp()
        s = h.sin()
        root = torch.exp(torch.log(s)).sum()
        h.add_(1)
        return root + h.sum()

    log = rewritten(fn, GRID, rules=[Rule("root", apply("exp", apply("log", x)), x)])
    assert any(run.name == "OwnRules" for run in log.changes)


def test_every_node_is_tried_at_most_once(monkeypatch):
    from staxlab.transform import trial

    ran = []
    original = trial.Interpreter.run_node
    monkeypatch.setattr(trial.Interpreter, "run_node", lambda self, node: ran.append(node) or original(self, node))

    def fn(a):
        for _ in range(20):
            a = torch.neg(a.sin()) * -1
        return a.sum()

    log = rewritten(fn, GRID, rules=[TWICE])
    assert len(log.changes[0].applied) == 20 and len(ran) == len(set(ran)) <= 60
    ran.clear()
    rewritten(lambda a: a.exp().sum(), GRID, rules=[TWICE])
    assert not ran, "a rule that never matches costs nothing"


def test_what_cannot_be_a_rule_is_refused():
    with pytest.raises(TransformError, match="replaces a tensor by 0"):
        rewritten(lambda a: (a.exp() * 0).sum(), X, rules=[Rule("zero", x * 0, 0)])
    with pytest.raises(TransformError, match="is no rule"):
        rewritten(lambda a: a + 1, X, rules=["x -> x"])
    with pytest.raises(TransformError, match="no operation to look for"):
        rewritten(lambda a: a + 1, X, rules=[Rule("anything", x, x + 1)])
    with pytest.raises(TransformError, match="nothing stands for y"):
        rewritten(lambda a: a + 1, X, rules=[Rule("unbound", x + 1, x + y)])
    with pytest.raises(TransformError, match="dynamic"):
        transform(staxlab.trace(lambda a: a + 1, X), Options(dynamic=True), rules=[TWICE])


def test_the_example_in_contributing_runs(repository, capsys):
    text = (repository / "CONTRIBUTING.md").read_text()
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "rules=" in code]
    exec(compile(example, "CONTRIBUTING.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert "exact" in printed and "twice the negative: -x * -1 -> x" in printed
