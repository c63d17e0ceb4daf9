"""One-liners: what becomes an input, what is closed over, what stays in the function, and what is refused."""

from __future__ import annotations

import inspect
import linecache

import pytest
import torch
from torch.nn import functional as F

import staxlab
from staxlab.errors import OptionError
from staxlab.oneliner import define, parse


def signature(line) -> tuple[list[str], list[str], str]:
    return [text for _, text, _ in line.inputs], [text for _, text, _ in line.objects], line.source


R3, O2 = "torch.randn(3)", "torch.ones(2)"


@pytest.mark.parametrize(
    ("expression", "inputs", "objects", "body"),
    [
        ("F.softmax(torch.randn(64, 1000), -1)", ["torch.randn(64, 1000)"], [], "return F.softmax(a, -1)"),
        ("torch.randn(3) + torch.ones(3)", ["torch.randn(3)", "torch.ones(3)"], [], "return a + b"),
        ("nn.LayerNorm(8)(torch.randn(4, 8))", ["torch.randn(4, 8)"], ["nn.LayerNorm(8)"], "return layer_norm(a)"),
        (
            "torch.nn.Linear(8, 3).eval().double()(torch.randn(4, 8, dtype=torch.float64))",
            ["torch.randn(4, 8, dtype=torch.float64)"],
            ["torch.nn.Linear(8, 3).eval().double()"],
            "return linear(a)",
        ),
        # A view or a conversion of an input is work for the compiler, not part of the input.
        ("torch.randn(4, 8).t().sum(0)", ["torch.randn(4, 8)"], [], "return a.t().sum(0)"),
        ("torch.zeros_like(torch.randn(3))", ["torch.randn(3)"], [], "return torch.zeros_like(a)"),
        ("torch.full((3,), math.pi) * 2", ["torch.full((3,), math.pi)"], [], "return a * 2"),
        ("torch.full((3,), torch.ones(1).item())", ["torch.ones(1)"], [], "return torch.full((3,), a.item())"),
        ("x = torch.randn(3); torch.relu(x) * x", [R3], [], "return torch.relu(x) * x"),
        ("x = torch.randn(3); y = x * 2; y + x", [R3], [], "y = x * 2\n    return y + x"),
        ("m = nn.ReLU(); m(torch.ones(2)) + m(torch.ones(2))", [O2, O2], ["nn.ReLU()"], "return m(a) + m(b)"),
        ("a = 2; torch.ones(2) * a", [O2], [], "return b * 2"),
        ("n = 4; k = math.sqrt(n); torch.rand(n, n) / k", ["torch.rand(4, 4)"], [], "return a / 2.0"),
        ("n = 4; s = (n, 1); torch.ones(s).expand(s)", ["torch.ones((4, 1))"], [], "return a.expand((4, 1))"),
        ("x = 2; x = torch.ones(x); x + x", [O2], [], "return x + x"),
        ("torch.stack([torch.ones(2), torch.rand(2)])", [O2, "torch.rand(2)"], [], "return torch.stack([a, b])"),
        ("torch.rand(2)[torch.arange(2)]", ["torch.rand(2)", "torch.arange(2)"], [], "return a[b]"),
        ("torch.sum(input=torch.ones(2))", [O2], [], "return torch.sum(input=a)"),
        ("torch.ones(2) * nn.Parameter(torch.ones(2))", [O2, f"nn.Parameter({O2})"], [], "return a * b"),
    ],
)  # fmt: skip
def test_what_is_lifted(expression, inputs, objects, body):
    line = parse(expression)
    assert signature(line) == (inputs, objects, f"def f({', '.join(n for n, _, _ in line.inputs)}):\n    {body}\n")
    torch.manual_seed(0)
    expected = _plain(expression)
    assert torch.equal(line.function(*line.arguments), expected)


def _plain(expression: str):
    """The value Python itself gives the text, with no lifting. Random factories draw in the same order."""
    scope = {"torch": torch, "F": F, "nn": torch.nn, "math": __import__("math")}
    *statements, final = expression.split("; ")
    exec("; ".join(statements), scope)
    return eval(final, scope)


def test_a_factory_that_runs_many_times_is_not_one_input():
    line = parse("torch.ones(2) + sum(torch.randn(2) for _ in range(3))")
    assert [text for _, text, _ in line.inputs] == ["torch.ones(2)"]
    assert "torch.randn(2) for" in line.source


def test_inputs_repeat_from_run_to_run():
    first, second = parse("torch.randn(5) * 1"), parse("torch.randn(5) * 1")
    assert torch.equal(first.arguments[0], second.arguments[0])
    assert not torch.equal(first.arguments[0], parse("torch.randn(5) * 1", seed=1).arguments[0])


def test_modules_are_cells_of_the_closure_and_lines_can_be_quoted():
    line = parse("nn.ReLU()(torch.ones(2))")
    assert inspect.getclosurevars(line.function).nonlocals == {"relu": line.objects[0][2]}
    code = line.function.__code__
    linecache.checkcache()
    assert linecache.getline(code.co_filename, code.co_firstlineno + 1).strip() == "return relu(a)"
    assert str(line) == "relu = nn.ReLU()\na = torch.ones(2)\ndef f(a):\n    return relu(a)"


def test_define_keeps_line_numbers():
    function = define("def g(x):\n    y = x + 1\n    return y / 0\n", file="<a test>")
    with pytest.raises(ZeroDivisionError) as caught:
        function(1)
    assert caught.traceback[-1].lineno + 1 == 3


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "empty"),
        ("F.softmax(", "not a Python expression"),
        ("torch.ones(2) \x00", "not a Python expression"),
        ("np.ones(3)", "'np' is not known here\n  remedy: available: torch, F, nn, math"),
        ("x + 1", r"'x' is not known here\n  remedy: define it first, as in 'x = torch.randn\(8, 8\); x \+ 1'; avail"),
        ("x.t() + 1", "remedy: define it first, as in 'x = torch"),
        ("relu(torch.ones(3))", r"'relu' is not known here\n  remedy: spell it out, as in torch.relu\(...\) or F.relu"),
        ("math.sqrt(2)", "makes no tensor"),
        ("x = torch.ones(2)", "last statement must be an expression"),
        ("import os; torch.ones(2)", "only assignments"),
        ("torch.randn(-1) + 1", "cannot be evaluated"),
        ("torch.normal('a') + 1", "cannot be evaluated"),
        ("F = 3; torch.ones(F)", "cannot be assigned"),
    ],
)
def test_refusals_are_clear(expression, message):
    with pytest.raises(OptionError, match=f"(?s){message}"):
        parse(expression)


def test_attention_in_one_line():
    line = parse(
        "x = torch.randn(1, 2, 16, 8); staxlab.omni_attention(x, x, x, lambda score, b, h, i, j: score - (i - j))"
    )
    compilation = staxlab.explain(line.function, *line.arguments, target="sm_90")
    assert "score_mod <lambda>" in compilation.kernels[0].source
