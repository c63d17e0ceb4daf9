"""The computation graph (Section 3.1, Definition 3.1): a straight-line program in single assignment form.

A :class:`Graph` is a list of :class:`Node` in topological order. Each node applies one operation and defines exactly
one value, which never changes, so every dependence is an edge and "who uses this value?" is a lookup. The same class
holds the captured graph (Python-level calls such as ``operator.add``) and the operator graph (``aten`` overloads).

Six opcodes (Table 3.1)::

    placeholder    an input; target is its name
    get_attr       a constant kept beside the graph; target is its name in ``GraphModule.constants``
    call_function  target(*args, **kwargs)
    call_method    getattr(args[0], target)(*args[1:], **kwargs)
    call_module    a submodule kept as one node (tracing inlines modules, so this is rare)
    output         the value the program returns, args[0], any nesting of containers
"""

from __future__ import annotations

import heapq
import keyword
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import TransformError
from ..provenance import NO_ORIGINS, Origins, SourceLocation, unite

OPCODES = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")


@dataclass(frozen=True)
class TensorMeta:
    """What the compiler remembers of a tensor value: everything but its elements.

    ``node.meta["val"]`` holds one for a tensor value, a tuple or list of them for an operator with several results,
    or the plain Python value (int, float, bool, torch.Size...) for anything else.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    storage_offset: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMeta:
        return cls(
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
            tensor.storage_offset(),
        )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if extent != 1 and stride != expected:
                return self.numel == 0
            expected *= extent
        return True

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def describe_value(value: Any) -> Any:
    """Metadata of a run-time value: tensors become :class:`TensorMeta`, containers keep their shape, the rest stays."""
    if isinstance(value, torch.Tensor):
        return TensorMeta.of(value)
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return (
            type(value)(describe_value(v) for v in value)
            if type(value) in (tuple, list)
            else tuple(describe_value(v) for v in value)
        )
    if isinstance(value, dict):
        return {key: describe_value(v) for key, v in value.items()}
    return value


def map_nodes(argument: Any, change: Callable[[Node], Any]) -> Any:
    """Replace every Node inside nested tuples, lists, dicts and slices by ``change(node)``."""
    if isinstance(argument, Node):
        return change(argument)
    if not isinstance(argument, _CONTAINERS):
        return argument
    if isinstance(argument, tuple):
        parts = [map_nodes(a, change) for a in argument]
        if hasattr(argument, "_fields"):
            return type(argument)(*parts)
        return tuple(parts) if type(argument) is tuple else type(argument)(parts)
    if isinstance(argument, list):
        return [map_nodes(a, change) for a in argument]
    if isinstance(argument, dict):
        return {key: map_nodes(value, change) for key, value in argument.items()}
    return slice(*(map_nodes(part, change) for part in (argument.start, argument.stop, argument.step)))


_CONTAINERS = (tuple, list, dict, slice)


def nodes_in(argument: Any) -> list[Node]:
    """The nodes inside an argument structure, left to right, with repetitions."""
    found: list[Node] = []
    _collect(argument, found)
    return found


def _collect(argument: Any, found: list[Node]) -> None:
    if isinstance(argument, Node):
        found.append(argument)
        return
    if isinstance(argument, dict):
        argument = argument.values()
    elif isinstance(argument, slice):
        argument = (argument.start, argument.stop, argument.step)
    elif not isinstance(argument, (tuple, list)):
        return
    for part in argument:
        if isinstance(part, Node):
            found.append(part)
        elif isinstance(part, _CONTAINERS):
            _collect(part, found)


class Node:
    """One operation and the value it defines.

    ``id`` is unique in its graph. ``origins`` are the ids of the *captured* nodes this one stems from (for a captured
    node, its own id). ``location`` is the user's source line. ``meta["val"]`` describes the value on the sample.
    ``users`` lists the nodes that read the value, in order of first use.

    Replaced inputs and absorbed origins are put down and settled when next read, so that a node with k inputs, or one
    that takes the place of k others, costs O(k) in all and not O(k^2). ``inputs`` are found once and kept until the
    arguments change: every pass asks for them. To change an argument, assign ``args`` or ``kwargs``; a list among them
    must not be edited in place.
    """

    __slots__ = (
        "_absorbed", "_args", "_inputs", "_kwargs", "_origins", "_replaced", "graph", "id", "location", "meta", "name",
        "op", "target", "users",
    )  # fmt: skip

    def __init__(self, graph: Graph, node_id: int, name: str, op: str, target: Any):
        self.graph = graph
        self.id = node_id
        self.name = name
        self.op = op
        self.target = target
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._inputs: tuple[Node, ...] | None = ()
        self._replaced: dict[Node, Any] | None = None
        self.users: dict[Node, None] = {}
        self.meta: dict[str, Any] = {}
        self._origins: Origins = NO_ORIGINS
        self._absorbed: list[Origins] | None = None
        self.location: SourceLocation | None = None

    @property
    def args(self) -> tuple[Any, ...]:
        if self._replaced:
            self._settle()
        return self._args

    @args.setter
    def args(self, value: tuple[Any, ...]) -> None:
        self._set(value, self.kwargs)

    @property
    def kwargs(self) -> dict[str, Any]:
        if self._replaced:
            self._settle()
        return self._kwargs

    @kwargs.setter
    def kwargs(self, value: dict[str, Any]) -> None:
        self._set(self.args, value)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The distinct nodes this one reads, in order of first appearance."""
        if self._inputs is None or self._replaced:
            self._inputs = tuple(dict.fromkeys(self._read()))
        return self._inputs

    def _read(self) -> list[Node]:
        """The nodes among the arguments, with repetitions."""
        found: list[Node] = []
        _collect(self.args, found)
        if self._kwargs:
            _collect(self._kwargs, found)
        return found

    @property
    def origins(self) -> Origins:
        if self._absorbed:
            self._origins = self._origins.union(*self._absorbed)
            self._absorbed = None
        return self._origins

    @origins.setter
    def origins(self, value: Origins) -> None:
        self._origins, self._absorbed = value, None

    @property
    def val(self) -> Any:
        """Shorthand for ``meta.get("val")``."""
        return self.meta.get("val")

    def _set(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for node in self.inputs:
            node.users.pop(self, None)
        self._args, self._kwargs, self._inputs = tuple(args), dict(kwargs), None
        for node in self.inputs:
            node.users[self] = None

    def replace_input(self, old: Node, new: Any) -> None:
        """Read ``new`` wherever this node read ``old``."""
        if self not in old.users or new is old:
            return
        found = nodes_in(new)
        if self._replaced and any(node in self._replaced for node in found):
            self._settle()  # a node that was replaced comes back
        if self._replaced is None:
            self._replaced = {}
        self._replaced[old] = new
        del old.users[self]
        for node in found:
            node.users[self] = None

    def _settle(self) -> None:
        """Carry out the replacements that were put down."""
        replaced, self._replaced = self._replaced, None
        assert replaced is not None

        def change(node: Node) -> Any:
            while node in replaced:
                node = replaced[node]
                if not isinstance(node, Node):
                    return map_nodes(node, change)
            return node

        self._args, self._kwargs = map_nodes(self._args, change), map_nodes(self._kwargs, change)
        self._inputs = None

    def replace_all_uses_with(self, new: Node) -> None:
        """Redirect every user of this node to ``new``, whose origins absorb this node's."""
        for user in list(self.users):
            if user is not new:
                user.replace_input(self, new)
        if new._absorbed is None:
            new._absorbed = []
        new._absorbed.append(self.origins)

    def target_name(self) -> str:
        """The target as one would write it: ``operator.add``, ``torch.relu``, ``aten.add.Tensor``, ``sum``."""
        return target_name(self.target)

    def format(self) -> str:
        """One line in the style of a listing: ``%add : float32[64, 128] = call_function[operator.add](%x, %w)``."""
        if self.op == "output":
            return f"return {_format_argument(self.args[0])}"
        kind = f" : {_format_meta(self.meta['val'])}" if "val" in self.meta else ""
        if self.op == "placeholder":
            return f"%{self.name}{kind} = placeholder[{self.target}]"
        parts = [_format_argument(a) for a in self.args]
        parts += [f"{key}={_format_argument(value)}" for key, value in self._kwargs.items()]
        return f"%{self.name}{kind} = {self.op}[{self.target_name()}]({', '.join(parts)})"

    def __repr__(self) -> str:
        return f"%{self.name}"


def target_name(target: Any) -> str:
    """A readable, stable name for a call target."""
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
    if module == "_operator":
        module = "operator"
    if module.startswith("torch._C") or module == "torch._VF":
        module = "torch.nn.functional" if "nn" in module.lower() else "torch"
    name = name.removeprefix("_VariableFunctionsClass.").removeprefix("TensorBase.").removeprefix("_TensorBase.")
    return f"{module}.{name}" if module and module != "builtins" else name


def _format_argument(argument: Any) -> str:
    if isinstance(argument, Node):
        return f"%{argument.name}"
    if isinstance(argument, (list, tuple)) and not isinstance(argument, torch.Size):
        inner = ", ".join(_format_argument(a) for a in argument)
        if isinstance(argument, list):
            return f"[{inner}]"
        return f"({inner},)" if len(argument) == 1 else f"({inner})"
    if isinstance(argument, dict):
        return "{" + ", ".join(f"{k!r}: {_format_argument(v)}" for k, v in argument.items()) + "}"
    if isinstance(argument, slice):
        return f"slice({', '.join(map(_format_argument, (argument.start, argument.stop, argument.step)))})"
    if callable(argument):
        return target_name(argument)
    return repr(argument)


def _format_meta(value: Any) -> str:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return "(" + ", ".join(_format_meta(v) for v in value) + ")"
    return str(value) if isinstance(value, TensorMeta) else f"{type(value).__name__} {value!r}"


class Graph:
    """A topologically ordered list of nodes. Records treat a graph as immutable once their stage has finished;
    a pass works on :meth:`copy`.

    Insertions and removals are put down and carried out together when the order is next read, in O(V): a pass that
    walks the graph once and edits k places takes O(V + k), not O(V k).
    """

    def __init__(self) -> None:
        self._order: list[Node] = []
        self._inserted: dict[Node, list[Node]] = {}  # new nodes that go right before a node
        self._erased: set[Node] = set()
        self._next_id = 0
        self._names: set[str] = set()
        self._next_suffix: dict[str, int] = {}
        self._free_suffixes: dict[str, list[int]] = {}  # heaps: suffixes of names that were given back
        self._insert_before: Node | None = None

    @property
    def _nodes(self) -> list[Node]:
        """The nodes in order, after all edits."""
        if not self._inserted and not self._erased:
            return self._order
        settled: list[Node] = []
        pending = self._order[::-1]
        while pending:
            node = pending.pop()
            before = self._inserted.pop(node, None)
            if before is not None:  # they come first, and others may have been put before them
                pending.append(node)
                pending.extend(reversed(before))
            elif node not in self._erased:
                settled.append(node)
        if self._inserted:
            lost = ", ".join(f"%{node.name}" for nodes in self._inserted.values() for node in nodes)
            self._inserted = {}
            raise TransformError(f"{lost} was to go before a node that is not in the graph")
        self._order, self._erased = settled, set()
        return settled

    def __repr__(self) -> str:
        return f"<graph of {len(self)} nodes>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(tuple(self._nodes))

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def placeholders(self) -> tuple[Node, ...]:
        return tuple(node for node in self._nodes if node.op == "placeholder")

    @property
    def output(self) -> Node:
        """The output node. Raises TransformError if the graph has none yet."""
        if self._nodes and self._nodes[-1].op == "output":
            return self._nodes[-1]
        raise TransformError("the graph has no output node")

    @property
    def calls(self) -> tuple[Node, ...]:
        return tuple(node for node in self._nodes if node.op.startswith("call_"))

    def find(self, name: str) -> Node:
        """The node called ``name``. KeyError if there is none."""
        for node in self._nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def format(self) -> str:
        """The whole graph as a listing, one node a line."""
        return "\n".join(["graph:"] + [f"    {node.format()}" for node in self._nodes])

    __str__ = format

    # -- building ---------------------------------------------------------------------------------------------------

    def create(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        name: str | None = None,
        origins: Iterable[int] | None = None,
        location: SourceLocation | None = None,
        val: Any = None,
    ) -> Node:
        """Append a node (or insert it at the current insertion point). ``origins`` defaults to the node's own id."""
        if op not in OPCODES:
            raise TransformError(f"unknown opcode {op!r}")
        node_id = self._next_id
        self._next_id += 1
        node = Node(self, node_id, self._unique_name(name or _base_name(op, target)), op, target)
        node._args, node._kwargs, node._inputs = tuple(args), dict(kwargs or {}), None
        for source in node.inputs:
            source.users[node] = None
        node.origins = frozenset((node_id,)) if origins is None else frozenset(origins)
        node.location = location
        if val is not None:
            node.meta["val"] = val
        if self._insert_before is None:
            self._nodes.append(node)
        else:
            self._inserted.setdefault(self._insert_before, []).append(node)
        return node

    def placeholder(self, name: str, **details: Any) -> Node:
        return self.create("placeholder", name, name=name, **details)

    def call_function(self, target: Callable, args: tuple = (), kwargs: dict | None = None, **details: Any) -> Node:
        return self.create("call_function", target, args, kwargs, **details)

    def call_method(self, target: str, args: tuple = (), kwargs: dict | None = None, **details: Any) -> Node:
        return self.create("call_method", target, args, kwargs, **details)

    def set_output(self, value: Any) -> Node:
        return self.create("output", "output", (value,), name="output", origins=())

    def inserting_before(self, node: Node) -> _InsertionPoint:
        """Context manager: nodes created inside go right before ``node``."""
        return _InsertionPoint(self, node)

    def erase(self, node: Node) -> None:
        """Remove a node nobody uses. TransformError otherwise."""
        if node.users:
            users = ", ".join(f"%{user.name}" for user in node.users)
            raise TransformError(f"cannot erase %{node.name}: it is used by {users}")
        if node.graph is not self or node in self._erased or node.name not in self._names:
            raise TransformError(f"cannot erase %{node.name}: it is not in the graph")
        node._set((), {})
        self._erased.add(node)
        self._names.discard(node.name)
        base, _, suffix = node.name.rpartition("_")
        if base and suffix.isdecimal():
            heapq.heappush(self._free_suffixes.setdefault(base, []), int(suffix))

    def copy(self) -> tuple[Graph, dict[Node, Node]]:
        """A deep copy that keeps ids, names, metadata and origins, and the map from old nodes to new ones."""
        clone = Graph()
        mapping: dict[Node, Node] = {}
        for node in self._nodes:
            twin = Node(clone, node.id, node.name, node.op, node.target)
            twin._args = map_nodes(node.args, mapping.__getitem__)
            twin._kwargs = map_nodes(node.kwargs, mapping.__getitem__)
            twin._inputs = None
            for source in node.inputs:
                mapping[source].users[twin] = None
            twin.meta = dict(node.meta)
            twin.origins, twin.location = node.origins, node.location
            clone._order.append(twin)
            mapping[node] = twin
        clone._next_id = self._next_id
        clone._names = set(self._names)
        clone._next_suffix = dict(self._next_suffix)
        clone._free_suffixes = {base: list(heap) for base, heap in self._free_suffixes.items()}
        return clone, mapping

    def check(self) -> None:
        """Raise TransformError unless names are unique, order is topological and users mirror inputs. O(V + E)."""
        seen: set[Node] = set()
        names: set[str] = set()
        for position, node in enumerate(self._nodes):
            if node.name in names:
                raise TransformError(f"two nodes are called %{node.name}")
            names.add(node.name)
            for source in node._read():
                if source not in seen:
                    raise TransformError(f"%{node.name} reads %{source.name} before it is defined")
                if node not in source.users:
                    raise TransformError(f"%{source.name} does not list its user %{node.name}")
            if any(user.graph is not self for user in node.users):
                raise TransformError(f"%{node.name} is used from another graph")
            if node.op == "output" and position != len(self._nodes) - 1:
                raise TransformError("the output node is not the last one")
            seen.add(node)

    def _unique_name(self, base: str) -> str:
        base = re.sub(r"\W", "_", base)
        if not base or base[0].isdigit() or keyword.iskeyword(base) or base in _RESERVED or _BUFFER.fullmatch(base):
            base = f"_{base}"
        name = base if base not in self._names else self._suffixed(base)
        self._names.add(name)
        return name

    def _suffixed(self, base: str) -> str:
        """The base with the smallest suffix that makes it unique; suffixes are handed out in order, O(log V) each."""
        free = self._free_suffixes.get(base, [])
        while free:
            name = f"{base}_{heapq.heappop(free)}"
            if name not in self._names:
                return name
        count = self._next_suffix.get(base, 0)
        while f"{base}_{count}" in self._names:
            count += 1
        self._next_suffix[base] = count + 1
        return f"{base}_{count}"


class _InsertionPoint:
    def __init__(self, graph: Graph, node: Node):
        self.graph, self.node = graph, node

    def __enter__(self) -> None:
        self.saved = self.graph._insert_before
        self.graph._insert_before = self.node

    def __exit__(self, *exc: object) -> None:
        self.graph._insert_before = self.saved


_RESERVED = {"torch", "operator", "constants", "self", "float", "slice", "forward"}
_BUFFER = re.compile(r"buf\d+")  # what lowering calls the buffers that it makes


def _base_name(op: str, target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return target._opname
    name = target if isinstance(target, str) else getattr(target, "__name__", "value")
    return name.rsplit(".", 1)[-1].strip("_") or "value"


def last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """For each node, the values whose last reader it is: they may be freed once it has run."""
    last: dict[Node, Node] = {}
    for node in graph:
        for source in node.inputs:
            last[source] = node
    dying: dict[Node, list[Node]] = {}
    for source, reader in last.items():
        dying.setdefault(reader, []).append(source)
    return dying


def united_origins(nodes: Iterable[Node]) -> Origins:
    """The union of the origins of several nodes."""
    return unite(node.origins for node in nodes)
