"""An exported program as one file, and back (Section 10.2).

The file is a ZIP archive of a text (JSON: nodes, declarations, conditions) and the program's tensors (as ``torch.save``
writes them, read back with ``weights_only=True``). A call's target is stored by its dotted name. Opening or calling a
program must not run anything but what a graph can say, whoever wrote the file, so names are followed only to PyTorch's
operations (those it lets ``__torch_function__`` override, and functions that make tensors), to Python's operators, to
methods and properties of tensors, and to the run-time assertions. Names of nodes and arguments must be identifiers and
quoted source lines single lines, for the graph is also written out as Python source.
"""

from __future__ import annotations

import functools
import io
import json
import keyword
import operator
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch

from ..capture.classify import TENSOR_PROPERTIES
from ..capture.graph import Graph, Node, TensorMeta, map_nodes
from ..capture.module import GraphModule
from ..capture.record import Constant, Flat, Nest
from ..errors import ConstraintError
from ..files import write_whole
from ..loops.expressions import Expr
from ..provenance import SourceLocation
from ..runtime.plan_encoding import NotEncodable, decode, encode
from ..shapes import assertions
from ..shapes.environment import ShapeDecision
from ..shapes.relations import Relation
from .adjudication import Adjudication
from .dimension import Dim
from .program import ExportedProgram, Place

FORMAT = "staxlab-exported-1"
_MODULES = ("torch", "operator", "_operator", "staxlab.shapes.assertions")

#: Functions that make tensors, which nothing overrides. Not among them: ``from_file``, which writes files.
_FACTORIES = frozenset({
    "arange", "as_strided", "as_tensor", "asarray", "bartlett_window", "blackman_window", "broadcast_shapes", "empty",
    "empty_permuted", "empty_strided", "eye", "full", "hamming_window", "hann_window", "kaiser_window", "linspace",
    "logspace", "normal", "ones", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
    "range", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "vander", "zeros",
})  # fmt: skip
_PROPERTIES = frozenset({*TENSOR_PROPERTIES, "shape"})
_NO_OPERATION = frozenset({"attrgetter", "call", "itemgetter", "methodcaller"})


def save(program: ExportedProgram, path: Any) -> Path:
    """Write ``program`` to ``path``: whole, or not at all. ConstraintError for what has no portable text (an argument
    that is an object, a result of a class of the user's); OSError as the file system gives it."""
    path = Path(path)
    try:
        text = json.dumps(_to_text(program), allow_nan=False)
    except NotEncodable as refusal:
        raise ConstraintError(
            f"{program.name} cannot be saved: {refusal}",
            remedy="return tensors, or tuples, lists and dictionaries of them",
        ) from None
    tensors, archive = io.BytesIO(), io.BytesIO()
    torch.save({name: t for name, t in program.module.constants.items() if isinstance(t, torch.Tensor)}, tensors)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("program.json", text)
        file.writestr("tensors.pt", tensors.getvalue())
    return write_whole(path, archive.getvalue(), private=False)


def load_exported(path: Any) -> ExportedProgram:
    """The program that :meth:`ExportedProgram.save` wrote. ConstraintError for a file that is none, is damaged, comes
    from another format, or names a function that is none of PyTorch's; OSError if it cannot be read."""
    data = Path(path).read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            text = json.loads(file.read("program.json"))
            tensors = torch.load(io.BytesIO(file.read("tensors.pt")), weights_only=True)
        if text.get("format") != FORMAT:
            raise ValueError(f"format {text.get('format')!r}, not {FORMAT!r}")
        return _from_text(text, tensors)
    except Exception as error:
        raise ConstraintError(
            f"{path} is no exported program that this version reads: {error}", remedy="export and save it again"
        ) from error


# -- targets ----------------------------------------------------------------------------------------------------------


@functools.cache
def _operations() -> frozenset[Any]:
    """Every function that a call of a graph may have as its target."""
    from torch.overrides import get_overridable_functions

    found = {function for functions in get_overridable_functions().values() for function in functions}
    found |= {getattr(torch, name) for name in _FACTORIES}
    found |= {getattr(operator, name) for name in _operator_names()}
    return frozenset({*found, *(value for name, value in vars(assertions).items() if name.startswith("assert_"))})


@functools.cache
def _operator_names() -> frozenset[str]:
    return frozenset(operator.__all__) - _NO_OPERATION


def _target_name(target: Any) -> list[str]:
    """("method" or a module, name) of a call's target. NotEncodable for what :func:`_target` would not follow."""
    if target is getattr:
        return ["builtins", "getattr"]
    if isinstance(target, str):
        parts = ["method", target]
    elif isinstance(target, torch._ops.OpOverload):
        parts = ["operator", target.name()]
    else:
        parts = _home(target)
    try:
        _target(parts)
    except ValueError as refusal:
        raise NotEncodable(str(refusal)) from None
    return parts


def _home(target: Any) -> list[str]:
    name = getattr(target, "__name__", "")
    homes = (getattr(target, "__module__", "") or "", "torch", "torch.nn.functional", "operator")
    for home in (*homes, "torch._C._nn", "torch.special", "torch.linalg", "torch.fft"):
        if _allowed(home) and getattr(_module(home), name, None) is target:
            return [home, name]
    if getattr(torch.Tensor, name, None) is target:
        return ["tensor", name]
    raise NotEncodable(f"the function {name or target!r}")


def _allowed(home: str) -> bool:
    return any(home == module or home.startswith(module + ".") for module in _MODULES)


def _module(name: str) -> Any:
    """A module that has been imported; reading a file imports none."""
    return torch._C._nn if name == "torch._C._nn" else sys.modules.get(name)


def _target(parts: list[str]) -> Any:
    home, name = parts
    if not (isinstance(home, str) and isinstance(name, str)):
        raise ValueError("a target that is no name")
    if home == "operator" and "::" in name:
        if not name.startswith(("aten::", "prims::")) or name.startswith("aten::from_file"):
            raise ValueError(f"{name} is no operation of PyTorch's")
        return decode(["operator", name])
    if not _is_name(name):
        raise ValueError(f"{name!r} is no name of a function")
    if (home, name) == ("builtins", "getattr"):
        return getattr
    if home in ("method", "tensor"):
        inner = name[2:-2] if name.startswith("__") and name.endswith("__") else ""
        operators = _operator_names()
        public = not name.startswith("_") or inner in operators or inner + "_" in operators
        if not public or not hasattr(torch.Tensor, name):
            raise ValueError(f"{name} is no method of tensors")
        return name if home == "method" else getattr(torch.Tensor, name)
    found = getattr(_module(home), name, None) if _allowed(home) else None
    try:
        known = found is not None and found in _operations()
    except TypeError:  # not hashable
        known = False
    if not known:
        raise ValueError(f"{home}.{name} is no operation of a graph")
    return found


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and text.isidentifier() and not keyword.iskeyword(text)


# -- the text ---------------------------------------------------------------------------------------------------------


_NODE = "%node"


def _arguments(argument: Any) -> Any:
    return encode(map_nodes(argument, lambda node: (_NODE, node.name)))


def _to_text(program: ExportedProgram) -> dict[str, Any]:
    nodes = []
    for node in program.graph:
        target = node.target if node.op in ("placeholder", "get_attr", "output") else _target_name(node.target)
        nodes.append([node.op, node.name, target, _arguments(node.args), _arguments(dict(node.kwargs)),
                      _meta_text(node.val), _location_text(node.location)])  # fmt: skip
    return {
        "format": FORMAT, "name": program.name, "names": list(program.names), "nodes": nodes,
        "places": [[p.path, list(p.sizes), encode(p.dtype), str(p.device), encode(p.layout), p.constant]
                   for p in program.places],
        "others": [[path, encode(value)] for path, value in program.others.items()],
        "dims": [[d.name, d.min, d.max, d.multiple_of] for d in program.dims.values()],
        "declared": [[path, d, name] for (path, d), name in program.declared.items()],
        "adjudications": [
            [a.condition, a.outcome, a.decision.text, a.decision.assumed, _location_text(a.decision.location)]
            for a in program.adjudications
        ],
        "output": _output_text(program.output_spec),
    }  # fmt: skip


def _from_text(text: dict[str, Any], tensors: dict[str, torch.Tensor]) -> ExportedProgram:
    graph, made = Graph(), {}

    def value(part: Any) -> Any:
        return _nodes(decode(part), made)

    for op, name, target, args, kwargs, meta, location in text["nodes"]:
        if op == "output":
            graph.set_output(value(args)[0])
            continue
        if op not in ("placeholder", "get_attr", "call_function", "call_method"):
            raise ValueError(f"a node of kind {op!r}")
        found = _target(target) if op.startswith("call_") else target
        args, kwargs = value(args), value(kwargs)
        if not all(map(_is_name, (name, *kwargs))):
            raise ValueError(f"{name!r} or one of its arguments has no name")
        if op.startswith("call_") and (op == "call_method") is not isinstance(found, str):
            raise ValueError(f"{name} is a {op} of something else")
        if found is getattr and (len(args) != 2 or kwargs or args[1] not in _PROPERTIES):
            raise ValueError(f"{name} reads what is no property of tensors")
        made[name] = graph.create(op, found, args, kwargs, name=name, location=_location(location))
        if (described := _meta(meta)) is not None:
            made[name].meta["val"] = described
    graph.check()
    dims = {row[0]: Dim(*row) for row in text["dims"]}
    nothing = Relation(Expr.of(0), "==", Expr.of(0))
    adjudications = tuple(
        Adjudication(ShapeDecision(nothing, _location(location), said, assumed), condition, outcome)
        for condition, outcome, said, assumed, location in text["adjudications"]
    )
    places = tuple(
        Place(path, tuple(sizes), decode(dtype), torch.device(device), decode(layout), constant)
        for path, sizes, dtype, device, layout, constant in text["places"]
    )
    declared = {(path, d): name for path, d, name in text["declared"]}
    return ExportedProgram(
        text["name"], GraphModule(graph, tensors), places, dims, declared, adjudications, _output(text["output"]),
        tuple(text["names"]), {path: decode(value) for path, value in text["others"]},
    )  # fmt: skip


def _nodes(value: Any, made: dict[str, Node]) -> Any:
    """``value`` with the nodes that stand in it by name."""
    if isinstance(value, tuple) and len(value) == 2 and value[0] == _NODE:
        return made[value[1]]
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)(_nodes(part, made) for part in value)
    if isinstance(value, dict):
        return {key: _nodes(part, made) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(*(_nodes(part, made) for part in (value.start, value.stop, value.step)))
    return value


def _meta_text(value: Any) -> Any:
    if isinstance(value, TensorMeta):
        return ["tensor", list(value.shape), list(value.stride), encode(value.dtype), str(value.device)]
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return ["parts", [_meta_text(part) for part in value]]
    return ["plain", encode(value)]


def _meta(text: Any) -> Any:
    kind, *rest = text
    if kind == "tensor":
        shape, stride, dtype, device = rest
        return TensorMeta.of(torch.empty_strided(shape, stride, dtype=decode(dtype), device="meta"))
    return tuple(map(_meta, rest[0])) if kind == "parts" else decode(rest[0])


def _location_text(location: SourceLocation | None) -> Any:
    return None if location is None else [Path(location.file).name, location.line, location.text]


def _location(text: Any) -> SourceLocation | None:
    if text is None:
        return None
    file, line, quoted = text
    return SourceLocation(str(file), int(line), " ".join(str(quoted).split()))  # on one line: it becomes a comment


def _output_text(spec: Any) -> Any:
    if isinstance(spec, Flat):
        return ["flat", spec.index]
    if isinstance(spec, Constant):
        return ["constant", encode(spec.value)]
    if isinstance(spec, Nest) and type(spec.like) in (tuple, list, dict):
        keys = encode(list(spec.like)) if type(spec.like) is dict else None
        return [type(spec.like).__name__, keys, [_output_text(part) for part in spec.parts]]
    raise NotEncodable("a result that is neither a tensor nor a tuple, list or dictionary of them")


def _output(text: Any) -> Any:
    kind, *rest = text
    if kind == "flat":
        return Flat(rest[0])
    if kind == "constant":
        return Constant(decode(rest[0]))
    keys, parts = rest
    like = dict.fromkeys(decode(keys)) if kind == "dict" else {"tuple": tuple, "list": list}[kind]([None] * len(parts))
    return Nest(like, tuple(map(_output, parts)))
