"""The small program that shows an error: it fails as long as the error is there, and runs without it."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys

import pytest
import torch

from staxlab import locate_error
from staxlab.capture.graph import Graph
from staxlab.capture.module import GraphModule
from staxlab.errors import OptionError
from staxlab.locate.script import Given, Unspeakable, function_text, save_script, script_text
from tests.locate.faults import FAULTS, numbers

BY_NAME = {fault.name: fault for fault in FAULTS}
#: How many calls are left of each program.
LEFT = {"capture": 1, "rule": 2, "decomposition": 1, "joint": 1, "partition": 2, "lowering": 1, "code": 1}


@pytest.mark.parametrize("name", LEFT)
def test_a_failing_graph_becomes_a_small_program(name, monkeypatch, tmp_path):
    fault, path = BY_NAME[name], tmp_path / "small.py"
    fault.plant(monkeypatch)
    location = locate_error(fault.program, *fault.inputs(), save=path)
    assert location.path == str(path) and path.read_text() == location.script and [*tmp_path.iterdir()] == [path]
    tree = ast.parse(location.script)
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "f")
    assert len(function.body) == LEFT[name] + 1, location.script  # and what it returns
    with pytest.raises(AssertionError, match="f goes wrong in"):
        runpy.run_path(str(path), run_name="__main__")
    monkeypatch.undo()
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.slow
def test_it_runs_as_a_program_of_its_own(monkeypatch, tmp_path):
    fault, path = BY_NAME["lowering"], tmp_path / "small.py"
    fault.plant(monkeypatch)
    locate_error(fault.program, *fault.inputs(), save=path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    plant = "next(f for f in FAULTS if f.name == 'lowering').plant(MonkeyPatch())"
    planted = (
        f"import runpy, sys; from pytest import MonkeyPatch; from tests.locate.faults import FAULTS; {plant};"
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    for command, status in (([sys.executable, str(path)], 0), ([sys.executable, "-c", planted, str(path)], 1)):
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        assert ("AssertionError: f goes wrong in Lowering" in done.stderr) == bool(status)
        assert ("f: no error" in done.stdout) == (not status)


def run(text: str) -> list[torch.Tensor]:
    scope = {"__name__": "a module"}
    exec(compile(text, "script", "exec"), scope)
    return scope["inputs"]()


def graph_of_sum(count: int) -> GraphModule:
    graph = Graph()
    inputs = [graph.placeholder(f"x{k}") for k in range(count)]
    graph.set_output(tuple(graph.call_method("sum", (x,)) for x in inputs))
    return GraphModule(graph)


def test_inputs_come_back_bit_for_bit():
    special = torch.tensor([[float("nan"), -0.0], [float("inf"), 1e-42]])
    given = [
        special, numbers(30, 20), numbers(30, 20).t(), torch.arange(5), torch.tensor(True), torch.empty(0, 3),
        torch.randn(3, dtype=torch.complex64), numbers(200).to(torch.bfloat16), numbers(4, 4)[:, ::2],
    ]  # fmt: skip
    text = script_text(graph_of_sum(len(given)), [Given(x) for x in given], {}, [], 0)
    for one, other in zip(run(text), given, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.stride() == other.stride() or not other.is_contiguous()
        assert torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in (one, other)))


def test_drawn_inputs_are_those_of_the_search():
    given = [Given(numbers(3, 4, grad=True), drawn=True), Given(numbers(5).double(), drawn=True)]
    found = run(script_text(graph_of_sum(2), given, {}, [], 0))
    for place, (one, entry) in enumerate(zip(found, given, strict=True)):
        assert torch.equal(one, entry.value(place)) and one.requires_grad == entry.tensor.requires_grad


HOSTILE = [
    '"""\nimport os; os._exit(3)\n"""', "# \r import os\r os._exit(3)", "\x0c\x00 \u2028 ü \\", "'; 1/0 #", "a" * 500,
]  # fmt: skip


@pytest.mark.parametrize("remark", HOSTILE)
def test_no_text_of_the_user_can_leave_its_comment(remark):
    text = script_text(graph_of_sum(1), [Given(torch.ones(2))], {"matmul": "x'\n1/0"}, [remark, remark], 0)
    assert text.isascii() and len(run(text)) == 1


def test_what_has_no_spelling_is_said():
    graph = Graph()
    x = graph.placeholder("x")
    graph.set_output(graph.call_function(lambda x: x, (x,)))
    with pytest.raises(Unspeakable, match="has no name that could be imported"):
        function_text(GraphModule(graph))
    with pytest.raises(Unspeakable, match="no literal"):
        function_text(GraphModule(Graph(), {"weight": torch.ones(2)}))


def test_a_path_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(OptionError, match="cannot be written"):
        save_script("1", tmp_path / "there is none" / "x.py")
    (tmp_path / "directory").mkdir()
    with pytest.raises(OptionError, match="cannot be written"):
        save_script("1", tmp_path / "directory")
    assert [path.name for path in tmp_path.iterdir()] == ["directory"]
