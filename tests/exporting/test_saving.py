"""Exported programs in files: what comes back, and what a file cannot say."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
import torch
import torch.nn.functional as F

from staxlab import Dim, export, load_exported
from staxlab.errors import ConstraintError

N = Dim("n", min=2, max=64)


def ramp(*shape):
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return (a.shape, a.dtype) == (b.shape, b.dtype) and torch.equal(a, b)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


def keyed(batch, k, *, scale, flag="a"):
    x = batch["x"] * k
    return {"y": x * scale, 3: None, "l": [x + x.shape[0], (scale, 2.5)], "empty": ()}


def spelled(x):
    y = F.gelu(x) @ torch.ones(3, 2) + x.shape[0] * torch.arange(2)
    z = torch.where(x > 0, x, -x).view(-1)[::2].sum(dtype=torch.float64)
    w = x.clone()
    w[:, 0] = x.shape[0]
    return y, z, w.T, ~(x > 1) | (x < 0), torch.einsum("ij,kj->ik", x, x), torch.ops.aten.mul.Tensor(x, x), 2 / x**2


PROGRAMS = {
    "linear": (torch.nn.Linear(3, 2), (4, 3)),
    "bfloat16": (torch.nn.Linear(3, 2).bfloat16(), (4, 3)),
    "layers": (torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool1d(2)), (4, 3, 9)),
    "transformer": (torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(), (4, 5, 8)),
    "lstm": (torch.nn.LSTM(3, 4, batch_first=True), (4, 5, 3)),
    "spellings": (spelled, (4, 3)),
    "in place": (lambda x: x.add_(1).mul_(2), (4, 3)),
    "nothing": (lambda x: None, (4, 3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_comes_back(name, tmp_path):
    fn, shape = PROGRAMS[name]
    kind = torch.bfloat16 if name == "bfloat16" else torch.float32
    program = export(fn, (ramp(*shape).to(kind),), dims={0: {0: N}})
    assert program.save(tmp_path / "program") == tmp_path / "program"
    loaded = load_exported(tmp_path / "program")
    mine, theirs = (torch.cos(ramp(7, *shape[1:])).to(kind) for _ in range(2))
    with torch.no_grad():
        assert same(loaded(mine), program(theirs)) and same(mine, theirs)
    files = [n.location.file for n in program.graph if n.location] + [
        a.decision.location.file for a in program.adjudications if a.decision.location
    ]
    text = str(program)
    for file in files:
        text = text.replace(file, file.rpartition("/")[2])  # a saved program names no folders
    assert text == str(loaded) and str(tmp_path) not in str(loaded)
    with pytest.raises(ConstraintError, match="n is 65"):
        loaded(torch.ones(65, *shape[1:], dtype=kind))
    loaded.save(tmp_path / "again")
    assert [load_exported(tmp_path / "again").module.code] == [loaded.module.code]


def test_everything_that_a_call_must_be_comes_back(tmp_path):
    program = export(keyed, ({"x": ramp(4)}, 2), {"scale": ramp(4)}, dims={"batch['x']": {0: N}, "scale": {0: N}})
    program.save(tmp_path / "p")
    loaded = load_exported(tmp_path / "p")
    for call in (program, loaded):
        assert same(call({"x": ramp(6)}, 2, scale=ramp(6)), keyed({"x": ramp(6)}, 2, scale=ramp(6)))
        assert same(call(k=2, batch={"x": ramp(6)}, scale=ramp(6)), keyed({"x": ramp(6)}, 2, scale=ramp(6)))
        with pytest.raises(ConstraintError, match="k = 2, and got 3"):
            call({"x": ramp(6)}, 3, scale=ramp(6))
        with pytest.raises(ConstraintError, match="n is 6 in one input and 5 in another"):
            call({"x": ramp(6)}, 2, scale=ramp(5))


def test_layouts_and_gradients_come_back(tmp_path):
    def fn(x):
        with torch.no_grad():
            y = x * 2
        return y + 1 if x.is_contiguous() else x

    export(fn, (ramp(4, 3),), dims={0: {0: N}}).save(tmp_path / "p")
    loaded = load_exported(tmp_path / "p")
    assert same(loaded(ramp(6, 3)), fn(ramp(6, 3)))
    with pytest.raises(ConstraintError, match="memory layout"):
        loaded(ramp(3, 6).t())
    with pytest.raises(ConstraintError, match="requires grad"):
        loaded(ramp(6, 3).requires_grad_())


class Config:
    scale = 2


def test_what_has_no_portable_text_is_not_saved(tmp_path):
    with_object = export(lambda x, c: x * c.scale, (ramp(4), Config()), dims={0: {0: N}})
    with_slots = export(lambda x: torch.max(x, 0), (ramp(4, 3),), dims={0: {0: N}})
    for program in (with_object, with_slots):
        with pytest.raises(ConstraintError, match="cannot be saved"):
            program.save(tmp_path / "p")
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError):
        export(lambda x: x, (ramp(4),)).save(tmp_path / "no folder" / "p")


# -- files that say something else ------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """A saved program, and a function that writes its text changed."""
    path = tmp_path / "program"
    export(lambda x: x.T.relu() + x.shape[0], (ramp(4, 4),), dims={0: {0: N, 1: N}}).save(path)
    with zipfile.ZipFile(path) as file:
        text, tensors = file.read("program.json"), file.read("tensors.pt")

    def write(change):
        described = json.loads(text)
        change(described)
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("program.json", json.dumps(described))
            file.writestr("tensors.pt", tensors)
        return path

    return path, write


def refused(path, message=""):
    with pytest.raises(ConstraintError, match="no exported program that this version reads") as error:
        load_exported(path)
    assert message in str(error.value), str(error.value)


def node(described, name):
    return next(row for row in described["nodes"] if row[1] == name)


HOSTILE = [
    ["os", "system"], ["posix", "system"], ["builtins", "eval"], ["builtins", "exec"], ["builtins", "open"],
    ["torch", "load"], ["torch", "save"], ["torch", "compile"], ["torch", "from_file"], ["torch", "fork"],
    ["torch.storage", "_load_from_bytes"], ["torch.ops", "load_library"], ["torch.classes", "load_library"],
    ["torch.utils.cpp_extension", "load_inline"], ["torch.utils.data", "DataLoader"], ["torch.hub", "load"],
    ["torch.serialization", "load"], ["torch.jit", "load"], ["torch.multiprocessing", "spawn"], ["torch", "nn"],
    ["operator", "attrgetter"], ["operator", "methodcaller"], ["operator", "call"], ["_operator", "call"],
    ["staxlab.shapes.assertions", "torch"], ["staxlab.shapes.assertions", "ConstraintError"],
    ["staxlab.exporting.saving", "save"], ["torch.nn.functional", "__builtins__"], ["torch", "__dict__"],
    ["torch.nn.functional", "importlib"], ["operator", "aten::from_file"], ["operator", "inductor::_alloc_from_pool"],
    ["operator", "aten::nothing_like_it"], ["tensor", "__reduce_ex__"], ["tensor", "__class__"],
    ["torch", "relu(x) or print"], ["torch", "import"], ["torch", 3], [None, "relu"], ["method", "relu"],
]  # fmt: skip


@pytest.mark.parametrize("target", HOSTILE, ids=str)
def test_a_function_that_is_no_operation(saved, target):
    path, write = saved

    def change(described):
        row = next(row for row in described["nodes"] if row[0] == "call_function" and "add" in row[1])
        row[2] = target

    refused(write(change))


NO_METHODS = ["__class__", "__reduce__", "__init_subclass__", "__getattribute__", "encode", "format", "__call__",
              "_make_subclass", "a.b", "relu() or print", "", 3]  # fmt: skip
NO_PROPERTIES = ["__class__", "__init__", "grad_fn", "T.__class__", "shape if x else y", 3, ["size", 3]]


@pytest.mark.parametrize("method", NO_METHODS)
def test_a_method_that_is_none_of_tensors(saved, method):
    path, write = saved

    def change(described):
        node(described, "relu")[2] = ["method", method]

    refused(write(change))


@pytest.mark.parametrize(
    "attribute", ["__class__", "__init__", "grad_fn", "T.__class__", "shape if x else y", 3, ["size", 3]]
)
def test_a_property_that_is_none_of_tensors(saved, attribute):
    path, write = saved

    def change(described):
        row = next(row for row in described["nodes"] if row[2] == ["builtins", "getattr"])
        row[3][2] = attribute

    refused(write(change))


def test_code_in_place_of_a_name_or_of_a_quoted_line(saved, tmp_path):
    path, write = saved
    witness = tmp_path / "witness"
    code = f"open({str(witness)!r}, 'w')"

    def in_keyword(described):
        node(described, "relu")[4] = ["d", [f"x={code}, y", 1]]

    def in_line(described):
        for row in described["nodes"]:
            row[6] = ["program.py", 3, f"x\n    {code}\r    {code}"]

    def in_name(described):
        row = next(row for row in described["nodes"] if row[0] == "placeholder")
        row[1] = f"x={code}"

    refused(write(in_keyword))
    loaded = load_exported(write(in_line))
    assert same(loaded(ramp(5, 5)), ramp(5, 5).T.relu() + 5)
    refused(write(in_name))
    assert not witness.exists()


DAMAGE = {
    "another format": lambda d: d.update(format="staxlab-exported-0"),
    "no format": lambda d: d.pop("format"),
    "no nodes": lambda d: d.pop("nodes"),
    "another kind of node": lambda d: d["nodes"][0].__setitem__(0, "call_module"),
    "a missing operand": lambda d: d["nodes"].pop(0),
    "the output early": lambda d: d["nodes"].insert(1, d["nodes"].pop()),
    "no range": lambda d: d["dims"][0].__setitem__(1, 100),
    "a dtype that is none": lambda d: d["places"][0].__setitem__(2, ["dtype", "load"]),
    "an output of another kind": lambda d: d.update(output=["set", [], []]),
    "a list": lambda d: d.update(nodes=3),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_text(saved, name):
    path, write = saved
    refused(write(DAMAGE[name]))


def test_damaged_files(saved, tmp_path):
    path, _ = saved
    whole = path.read_bytes()
    for broken in (b"", b"PK", b"not a program at all", whole[: len(whole) // 2], whole[:-30], whole[40:]):
        path.write_bytes(broken)
        refused(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("program.json", "[]")
    refused(path)
    with pytest.raises(FileNotFoundError):
        load_exported(tmp_path / "nothing")
    with pytest.raises(OSError):
        load_exported(tmp_path)


class Evil:
    def __reduce__(self):
        return print, ("ran",)


def test_pickled_objects_among_the_tensors(saved, capsys):
    path, _ = saved
    with zipfile.ZipFile(path) as file:
        text = file.read("program.json")
    tensors = io.BytesIO()
    torch.save({"weight": Evil()}, tensors)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("program.json", text)
        file.writestr("tensors.pt", tensors.getvalue())
    refused(path)
    assert "ran" not in capsys.readouterr().out
