"""What a plan depends on, as one hash (Section 11.1).

Kernels are the value of a function: lowering, scheduling and generation take an operator graph, options and a device,
and look at nothing else but a few settings of PyTorch and their own text. Proposition 11.1 says when memoizing it is
safe: the key must cover every determinant. So the key is made of *what those stages are given*, and not of the user's
function: two functions that come to the same graph share a plan, and whatever reaches the graph by another way than
the function's text (a closure, a global, a library, a data gate, a rule of the front end) is covered because the
graph is. In detail, the key holds

* the operator graph: nodes with ids, origins and names, overloads by their full names, arguments, and of every value
  shape, strides, dtype, device and the rest of its metadata; write-backs, memories, versions, what is known to be
  apart; 0-dim constants with their values, which become numbers in kernels, and other constants without theirs;
* options, device (the number of threads among its facts), inputs that the call owns;
* PyTorch's default dtype, its wish for deterministic algorithms, and the precision of products, which rules ask for;
* the versions of PyTorch and Python, and of Triton for a GPU; which operators have a rule (:mod:`.plan_basis`);
* the text of the stages themselves (:mod:`.plan_sources`).

What has no portable text (a generator of random numbers as an argument, an operator of the user's own) makes a region
one that is not kept. A name that only this process knows (an attention's specification) stands in the key together with
what it means (:data:`MEANINGS`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..capture.graph import Node, TensorMeta
from ..operators.graph import OperatorGraph
from ..options import DeviceSpec, Options
from ..specialize.ambient import product_precision
from .plan_encoding import NotEncodable, encode, text_of

#: The version of what a plan consists of and how it is written.
FORMAT = "staxlab-plan-1"

#: Namespaces of operators whose name says what they are, wherever the name is read.
PUBLIC = ("aten", "prims", "prim")

#: Operators of the compiler's own -> what a call's arguments mean beyond their text.
MEANINGS: dict[torch._ops.OpOverload, Callable[[tuple], Any]] = {}

#: Looks behind a stage's failure. Where it is set, stages run.
DEBUG = "STAXLAB_LOWER_DEBUG"


def key_of(
    operators: OperatorGraph, options: Options, device: DeviceSpec, owned: Iterable[str], basis: str, sources: str
) -> str:
    """The name under which the plan of a region is kept; ``basis`` and ``sources`` are the digests of which operators
    have rules, and of the package. Raises NotEncodable where there is none. Linear in the graph."""
    if os.environ.get(DEBUG):
        raise NotEncodable(f"{DEBUG} is set: stages run, so that they can fail")
    parts = (
        FORMAT, sources, basis, _versions(device.is_gpu), ambient(), _fields(options), _fields(device), sorted(owned),
        _graph(operators),
    )  # fmt: skip
    return "plan-" + hashlib.sha256(text_of(parts, _known).encode()).hexdigest()


def ambient() -> tuple[Any, ...]:
    """The settings of PyTorch that stages ask for: the default dtype, whether algorithms are to be deterministic, and
    whether float32 products on a GPU may keep fewer bits."""
    return torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), product_precision()


@functools.lru_cache(maxsize=2)
def _versions(gpu: bool) -> tuple[Any, ...]:
    return (*host_versions(), _triton_version() if gpu else None)


def host_versions() -> tuple[str, ...]:
    """PyTorch with its commit and Python."""
    return str(torch.__version__), str(torch.version.git_version), sys.version


def _triton_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _known(value: Any) -> Any:
    """Nodes by name, metadata field by field."""
    if type(value) is TensorMeta:
        return (
            value.shape, value.stride, value.dtype, value.device, value.requires_grad, value.storage_offset,
        )  # fmt: skip
    if type(value) is Node:
        return "node", value.name
    return None


def _graph(operators: OperatorGraph) -> tuple[Any, ...]:
    if operators.obstacles or operators.mutations:
        raise NotEncodable("a graph that is not pure")
    nodes = [_node(node, operators.module.constants) for node in operators.graph]
    return (
        nodes, operators.inputs, operators.write_backs, operators.memories, operators.versions, sorted(operators.apart),
    )  # fmt: skip


def _node(node: Node, constants: dict[str, Any]) -> tuple[Any, ...]:
    meaning: Any = None
    target = node.target
    if node.op == "get_attr":
        meaning = _constant(constants[node.target])
    elif isinstance(target, torch._ops.OpOverload):
        if target in MEANINGS:
            meaning = MEANINGS[target](node.args)
        elif target.namespace not in PUBLIC:
            raise NotEncodable(f"{target}, which is what a library makes of it")
    elif node.op == "call_function":
        target = f"{target.__module__}.{target.__qualname__}"
        if target != "_operator.getitem":
            raise NotEncodable(f"a call of {target}")
    details = tuple((name, value) for name, value in node.meta.items() if name not in ("val", "autograd_node"))
    if details:
        raise NotEncodable(f"%{node.name} has {details[0][0]}")
    return node.op, node.name, node.id, node.origins, target, node.args, node.kwargs, node.val, meaning


def _constant(value: Any) -> Any:
    """A constant as kernels depend on it: a 0-dim tensor becomes a number in their text, any other is read from
    memory."""
    if not isinstance(value, torch.Tensor):
        encode(value)  # a module, or another object: no
        return "value", value
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        raise NotEncodable(f"a constant of type {type(value).__name__}")
    number = value.item() if value.dim() == 0 else None
    return TensorMeta.of(value), value.is_conj() or value.is_neg(), number
