"""Registering backends, choosing one, and the options it is given (Section 11.4)."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.backends import table
from staxlab.options import Options


@pytest.fixture(autouse=True)
def fresh_table():
    table.clear()
    yield
    table.clear()


def interpret(graph_module, example_inputs):
    """Runs the graph."""
    return graph_module.forward


def test_the_table_has_the_prefixes_what_ships_and_what_was_registered():
    before = staxlab.list_backends()
    assert before.names == ("eager", "aot_eager", "stax", "onnxrt", "tvm", "cudagraphs")
    assert [row.after for row in before][:3] == ["transforms", "operators", "artifact"]
    staxlab.register_backend("mine", interpret)
    assert staxlab.list_backends().names == (*before.names, "mine")
    text = str(staxlab.list_backends())
    assert "mine" in text and "Runs the graph." in text and "onnxrt" in text


def test_a_decorator_registers_and_gives_the_function_back():
    @staxlab.register_backend("decorated", after="operators")
    def backend(graph_module, example_inputs):
        return graph_module.forward

    assert backend.__name__ == "backend" and table.find("decorated").after == "operators"
    assert staxlab.compile(lambda x: x + 1, backend="decorated")(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("not an identifier", interpret), "Python identifier"),
        ((3, interpret), "Python identifier"),
        (("eager", interpret), "belongs to the package"),
        (("onnxrt", interpret), "belongs to the package"),
        (("mine", 3), "not callable, but int"),
    ],
)
def test_what_cannot_be_registered_is_refused(arguments, words):
    with pytest.raises(staxlab.OptionError, match=words):
        staxlab.register_backend(*arguments)
    with pytest.raises(staxlab.OptionError, match="'transforms', 'operators'"):
        staxlab.register_backend("mine", interpret, after="loops")


def test_a_name_that_is_taken_is_refused_unless_it_is_to_be_replaced():
    staxlab.register_backend("mine", interpret)
    staxlab.register_backend("mine", interpret)  # the very same
    first = staxlab.compile(lambda x: x + 1, backend="mine")
    other = lambda graph_module, example_inputs: lambda *inputs: (inputs[0] + 41,)  # noqa: E731
    with pytest.raises(staxlab.OptionError, match="registered already"):
        staxlab.register_backend("mine", other)
    staxlab.register_backend("mine", other, replace=True)
    assert staxlab.compile(lambda x: x + 1, backend="mine")(torch.ones(1)).item() == 42
    assert first(torch.ones(1)).item() == 2  # compiled functions keep their backend


def test_unknown_backends_are_refused_with_the_nearest():
    staxlab.register_backend("my_backend", interpret)
    with pytest.raises(staxlab.OptionError, match="did you mean 'my_backend'"):
        staxlab.compile(lambda x: x, backend="my_backedn")
    with pytest.raises(staxlab.OptionError, match="did you mean 'onnxrt'"):
        Options(backend="onxrt")
    with pytest.raises(staxlab.OptionError, match="unknown backend 3"):
        staxlab.compile(lambda x: x, backend=3)


def test_a_backend_itself_may_be_passed_and_is_named_after_the_function():
    compilation = staxlab.explain(lambda x: x * 2, torch.ones(2), backend=interpret)
    assert compilation.options.backend == "interpret" and "interpret" not in staxlab.list_backends()
    assert compilation.call([torch.ones(2)])[0].tolist() == [2, 2]


def test_options_go_to_the_backend_that_declares_them():
    seen = []

    def backend(graph_module, example_inputs, *, level=1, fuse=None):
        seen.append((level, fuse))
        return graph_module.forward

    def run(**options):
        staxlab.compile(lambda x: x + 1, backend=backend, options=options)(torch.ones(1))
        return seen[-1]

    assert run() == (1, True)  # an option of ours that it declares: our value
    assert run(level=3, fuse=False) == (3, False)
    with pytest.raises(staxlab.OptionError, match="did you mean 'level'"):
        run(levle=3)
    with pytest.raises(staxlab.OptionError, match="has no hash: list"):
        run(level=[])
    takes_all = lambda graph_module, example_inputs, **rest: seen.append(rest) or graph_module.forward  # noqa: E731
    staxlab.compile(lambda x: x + 1, backend=takes_all, options={"anything": 1})(torch.ones(1))
    assert seen[-1] == {"anything": 1}


def test_options_are_hashable_and_differ_by_backend():
    by_name = {name: Options.resolve(backend=name) for name in ("stax", "eager", "onnxrt", "tvm")}
    assert len(set(by_name.values())) == 4
    assert Options.resolve(backend=interpret) == Options.resolve(backend=interpret)
    another = lambda graph_module, example_inputs: graph_module.forward  # noqa: E731
    another.__name__ = "interpret"
    assert Options.resolve(backend=interpret) != Options.resolve(backend=another)
    with_level = Options.resolve(backend="onnxrt", options={"threads": 2})
    assert with_level != by_name["onnxrt"] and hash(with_level) != hash(by_name["onnxrt"])


def test_options_follow_the_backend_when_they_are_replaced():
    import dataclasses

    outside = Options.resolve(backend="onnxrt", options={"threads": 2})
    own = dataclasses.replace(outside, backend="eager")
    assert own.outside is None and own.extra == () and own.last_stage == "transforms"


def test_dynamic_and_other_targets_are_refused():
    with pytest.raises(staxlab.OptionError, match="leave dynamic=True out"):
        staxlab.compile(lambda x: x, backend=interpret, dynamic=True)
    with pytest.raises(staxlab.OptionError, match="not for 'sm_90'"):
        staxlab.explain(lambda x: x + 1, torch.ones(2), backend=interpret, target="sm_90")


def test_the_example_and_the_table_of_the_documentation(capsys):
    import re
    from pathlib import Path

    from staxlab.modes import mode_table

    text = (Path(__file__).resolve().parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(example.strip().splitlines()) <= 12
    exec(compile(example, "docs/backends.md", "exec"), {})
    assert "3 operations" in capsys.readouterr().out
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|.*\| (?:`(\w+)`)? ?\|$", text, re.MULTILINE)
    table.clear()
    assert rows == [(row.name, row.after, row.extra or "") for row in staxlab.list_backends()]
    assert str(mode_table()) in text
