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
