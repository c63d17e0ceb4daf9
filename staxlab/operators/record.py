"""Recording at the dispatcher (Sections 4.8 and 5.1): which operator overloads does a graph of Python calls reach?

A captured node says ``F.gelu`` or ``operator.add``; which kernel that is depends on the dtypes, on the rank, on type
promotion, on what a composite function is made of. The dispatcher knows, so it is asked: the graph is run once more on
the real sample, node by node, under a dispatch mode that writes down every overload it meets. The result is an
:class:`OperatorGraph` over ``aten`` overloads, which is all the back end ever sees.

Two rewritings happen on the way. An operator outside the back end's *basis* (Definition 4.2: the overloads it has a
lowering rule or a library call for) is replaced by its rule from PyTorch's decomposition table, run under the same mode
so that its parts are recorded and, where needed, decomposed in turn; this ends because the rules refer to one another
without cycles (Proposition 4.3). Random operators stay whole: taken apart they would consume the random state
differently. And what the graph must not contain, because a later run could differ from the sample, is written down as
an :class:`Obstacle`: an operator whose result's shape or Python value depends on data, a write into a tensor.

The sample is executed for real (Section 3.3), one eager execution; intermediates die as they do in eager mode, since
the recorder knows tensors by identity through weak references only.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.graph import Graph, Node, TensorMeta, describe_value
from ..capture.module import GraphModule, Interpreter
from ..options import Options
from ..provenance import NO_ORIGINS, Origins, SourceLocation
from .basis import decomposition_of, is_random, written_arguments
from .structure import flatten, rebuild

aten = torch.ops.aten


@dataclass(frozen=True)
class Obstacle:
    """Why a region cannot be compiled as a pure function of its inputs: the node, the reason, the user's line."""

    node: str
    kind: str  # "mutation", "data-dependent", "dynamic-shape", "unknown-tensor"
    reason: str
    location: SourceLocation | None = None

    def __str__(self) -> str:
        return f"%{self.node}: {self.reason}" + (f" ({self.location})" if self.location else "")


@dataclass(frozen=True)
class Decomposed:
    """One operator taken apart: its overload, the names of the nodes its rule was recorded as, the user's line."""

    operator: str
    into: tuple[str, ...]
    origins: Origins = NO_ORIGINS
    location: SourceLocation | None = None

    def __str__(self) -> str:
        return f"{self.operator} -> {', '.join('%' + name for name in self.into) or 'nothing'}"


@dataclass(frozen=True)
class OperatorGraph:
    """The recorded graph of ``aten`` overloads.

    ``module`` runs it (placeholders in the order of ``record``'s inputs, constants in ``module.constants``).
    ``mutations`` are the nodes that write into a tensor; ``obstacles`` everything that keeps the graph from being a
    pure function of its inputs, mutations included: lowering needs the list to be empty. ``decomposed`` logs the rules
    of the decomposition table that were used.
    """

    module: GraphModule
    inputs: tuple[TensorMeta | Any, ...]
    mutations: tuple[Node, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    decomposed: tuple[Decomposed, ...] = ()

    @property
    def graph(self) -> Graph:
        return self.module.graph

    @property
    def is_pure(self) -> bool:
        return not self.obstacles

    @property
    def output_leaves(self) -> list[Any]:
        """What the program returns, flattened: nodes and Python constants, left to right."""
        return flatten(self.graph.output.args[0])

    def rebuild(self, leaves: Iterable[Any]) -> Any:
        """The program's output structure with other leaves, in the order of :attr:`output_leaves`."""
        return rebuild(self.graph.output.args[0], leaves)

    def format(self) -> str:
        lines = [self.graph.format()]
        if self.decomposed:
            lines += ["decomposed:"] + [f"    {entry}" for entry in self.decomposed]
        if self.obstacles:
            lines += ["obstacles:"] + [f"    {obstacle}" for obstacle in self.obstacles]
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def record(
    module: GraphModule,
    inputs: list[Any],
    options: Options | None = None,
    *,
    basis: frozenset[torch._ops.OpOverload] | None = None,
) -> OperatorGraph:
    """Run ``module`` on the sample ``inputs`` and return the graph of dispatched overloads (Definition 4.2).

    ``inputs`` are the values of the placeholders, tensors or Python values. ``basis`` holds the overloads the back end
    implements (None: everything, nothing is decomposed). One eager execution in time;
    memory as eager. Exceptions of the program itself pass through with a note naming the node.
    """
    recorder = _Recorder(module, basis)
    with torch.no_grad():
        return recorder.trace(inputs)


class _TensorTable:
    """Which node defines a tensor. Tensors are known by identity, held weakly: an entry is only believed while its
    weak reference still leads to the very tensor asked for, because a dead tensor's id may be given out again."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[weakref.ref, Node]] = {}
        self._by_storage: dict[int, list[tuple[weakref.ref, Node]]] = {}

    def put(self, tensor: torch.Tensor, node: Node) -> None:
        entry = (weakref.ref(tensor), node)
        self._by_id[id(tensor)] = entry
        shared = self._by_storage.setdefault(_storage_key(tensor), [])
        shared[:] = [old for old in shared if old[0]() is not None]
        shared.append(entry)

    def get(self, tensor: torch.Tensor) -> Node | None:
        reference, node = self._by_id.get(id(tensor), (None, None))
        return node if reference is not None and reference() is tensor else None

    def forget(self, nodes: set[Node]) -> None:
        """Drop what is known of tensors these nodes defined."""
        self._by_id = {key: entry for key, entry in self._by_id.items() if entry[1] not in nodes}
        for shared in self._by_storage.values():
            shared[:] = [entry for entry in shared if entry[1] not in nodes]

    def sharing_storage(self, tensor: torch.Tensor) -> Node | None:
        """A node whose live tensor has the same memory and dtype (``x.data`` bypasses the dispatcher)."""
        key = _storage_key(tensor)
        for reference, node in self._by_storage.get(key, ()):
            known = reference()
            if known is not None and _storage_key(known) == key and known.dtype == tensor.dtype:
                return node
        return None


def _storage_key(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse and other tensors without one storage
        return -id(tensor)


@dataclass
class _Position:
    """What the nodes recorded now stem from."""

    origins: Origins = NO_ORIGINS
    location: SourceLocation | None = None


@dataclass
class _Log:
    mutations: list[Node] = field(default_factory=list)
    obstacles: list[tuple[Node, str, str]] = field(default_factory=list)
    decomposed: list[Decomposed] = field(default_factory=list)

    def lengths(self) -> tuple[int, int, int]:
        return len(self.mutations), len(self.obstacles), len(self.decomposed)

    def truncate(self, lengths: tuple[int, int, int]) -> None:
        for entries, length in zip((self.mutations, self.obstacles, self.decomposed), lengths, strict=True):
            del entries[length:]


class _Recorder(TorchDispatchMode):
    """The dispatch mode that writes down what passes through it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would otherwise import its own compiler to wrap __torch_dispatch__

    def __init__(self, module: GraphModule, basis: frozenset[torch._ops.OpOverload] | None):
        super().__init__()
        self.module = module
        self.basis = basis
        self.graph = Graph()
        self.constants: dict[str, Any] = {}
        self.table = _TensorTable()
        self.position = _Position()
        self.log = _Log()
        self.trusted: dict[int, torch.Tensor] = {}  # literals of the program, by id

    # -- the run ------------------------------------------------------------------------------------------------------

    def trace(self, inputs: list[Any]) -> OperatorGraph:
        for placeholder, value in zip(self.module.graph.placeholders, inputs, strict=True):
            node = self.graph.placeholder(
                placeholder.name, origins=placeholder.origins, location=placeholder.location, val=describe_value(value)
            )
            if isinstance(value, torch.Tensor):
                self.table.put(value, node)
        for value in self.module.constants.values():
            if isinstance(value, torch.Tensor):
                self.trusted[id(value)] = value
        with self:
            result = _NodeByNode(self).run(*inputs)
        self.position = _Position()
        self.graph.set_output(rebuild(result, [self._leaf(leaf) for leaf in flatten(result)]))
        self._remove_dead()
        self.graph.check()
        alive = set(self.graph.nodes)
        obstacles = tuple(
            Obstacle(node.name, kind, reason, node.location)
            for node, kind, reason in self.log.obstacles
            if node in alive
        )
        return OperatorGraph(
            GraphModule(self.graph, self.constants),
            tuple(describe_value(value) for value in inputs),
            tuple(node for node in self.log.mutations if node in alive),
            obstacles,
            tuple(self.log.decomposed),
        )

    def _leaf(self, value: Any) -> Any:
        return self._node_of(value) if isinstance(value, torch.Tensor) else value

    def _remove_dead(self) -> None:
        """Operators nobody reads go, unless running them is their point: random ones advance the generator, writes
        are effects, and obstacles must be seen."""
        kept = {node for node, _, _ in self.log.obstacles}
        for node in reversed(self.graph.nodes):
            effect = node in kept or (isinstance(node.target, torch._ops.OpOverload) and is_random(node.target))
            if node.op in ("call_function", "get_attr") and not node.users and not effect:
                self.graph.erase(node)
        for name in [n for n in self.constants if not any(x.op == "get_attr" and x.target == n for x in self.graph)]:
            del self.constants[name]

    # -- the mode -----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if self.basis is not None and func not in self.basis and not is_random(func):
            done, result = self._try_decomposition(func, args, kwargs)
            if done:
                return result
        result = func(*args, **kwargs)
        self._write_down(func, args, kwargs, result)
        return result

    def _try_decomposition(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[bool, Any]:
        """Run the rule for ``func`` under this mode. All or nothing: a rule that refuses, fails, or would make the
        graph depend on data leaves no trace, and the operator is recorded whole."""
        rule = decomposition_of(func)
        if rule is None:
            return False, None
        mark = len(self.graph)
        before = self.log.lengths()
        try:
            with self:
                result = rule(*args, **kwargs)
            added = self.graph.nodes[mark:]
            failed = (
                result is NotImplemented or self.log.lengths()[:2] != before[:2] or any(map(self._is_foreign, added))
            )
        except Exception:  # whatever a rule trips over, the operator itself will either do or report properly
            failed, result = True, None
        if failed:
            self._roll_back(mark, before)
            return False, None
        if not func._can_decompose():
            names = tuple(node.name for node in self.graph.nodes[mark:])
            self.log.decomposed.append(Decomposed(str(func), names, self.position.origins, self.position.location))
        return True, result

    def _is_foreign(self, node: Node) -> bool:
        """Whether a rule led out of ``aten`` to an operator the back end does not know (PyTorch's ``prims``)."""
        overload = isinstance(node.target, torch._ops.OpOverload)
        return overload and node.target.namespace == "prims" and node.target not in self.basis

    def _roll_back(self, mark: int, lengths: tuple[int, int, int]) -> None:
        """Forget every node from position ``mark`` on, and what was logged about them."""
        dropped = self.graph.nodes[mark:]
        for node in reversed(dropped):
            self.graph.erase(node)
        self.table.forget(set(dropped))
        self.log.truncate(lengths)

    def _write_down(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        written = written_arguments(func, args, kwargs)
        arguments = {id(leaf) for leaf in flatten((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if func is aten.lift_fresh.default:
            self.trusted[id(args[0])] = args[0]  # torch.tensor([1., 2.]): a literal of the program
        if not written and isinstance(result, torch.Tensor) and id(result) in arguments:
            return  # an operator that hands its argument back is no operation
        node_args, node_kwargs = complete_arguments(func, self._nodes_for(args), self._nodes_for(kwargs))
        node = self._create("call_function", func, node_args, node_kwargs, describe_value(result))
        if written:
            self.log.mutations.append(node)
            names = ", ".join(f"%{target.name}" for target in map(self._node_of, written))
            self.log.obstacles.append((node, "mutation", f"{func} writes into {names}"))
        self._note_dependence_on_data(node, func, args, result)
        self._register(node, result, arguments if written else set())

    def _register(self, node: Node, result: Any, arguments: set[int]) -> None:
        """Remember which tensors ``node`` defines; results of an operator with several get a ``getitem`` each."""
        if isinstance(result, torch.Tensor):
            if id(result) not in arguments:  # an in-place operator returns its argument, which keeps its own node
                self.table.put(result, node)
            return
        if isinstance(result, (tuple, list)):
            for position, part in enumerate(result):
                if isinstance(part, torch.Tensor) and id(part) not in arguments:
                    name, val = f"{node.name}_{position}", describe_value(part)
                    item = self._create("call_function", operator.getitem, (node, position), {}, val, name=name)
                    self.table.put(part, item)

    def _note_dependence_on_data(self, node: Node, func: Any, args: tuple, result: Any) -> None:
        tags = func.tags
        if func in _INDEXED:  # tagged as dynamic for the sake of masks only
            dynamic = any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        else:
            dynamic = torch.Tag.dynamic_output_shape in tags
        if dynamic:
            self.log.obstacles.append((node, "dynamic-shape", f"the shape of {func}'s result depends on data"))
        elif torch.Tag.data_dependent_output in tags or (
            any(isinstance(leaf, torch.Tensor) for leaf in flatten(args))
            and any(isinstance(leaf, (bool, int, float, complex)) for leaf in flatten(result))
            and not func.name().startswith(_METADATA_QUERIES)
        ):
            self.log.obstacles.append((node, "data-dependent", f"{func} reads a tensor's value into Python"))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _create(self, op: str, target: Any, args: tuple, kwargs: dict, val: Any, *, name: str | None = None) -> Node:
        return self.graph.create(
            op, target, args, kwargs, name=name, origins=self.position.origins, location=self.position.location, val=val
        )

    def _nodes_for(self, argument: Any) -> Any:
        return rebuild(argument, [self._leaf(leaf) for leaf in flatten(argument)])

    def _node_of(self, tensor: torch.Tensor) -> Node:
        node = self.table.get(tensor)
        if node is not None:
            return node
        base = self.table.sharing_storage(tensor) if id(tensor) not in self.trusted else None
        if base is not None:
            # Made without the dispatcher (x.data, x.numpy() and back): the same memory seen through a known tensor.
            offset = tensor.storage_offset()
            offset = None if offset == base.val.storage_offset else offset
            node = self._create(
                "call_function",
                aten.as_strided.default,
                (base, list(tensor.shape), list(tensor.stride()), offset),
                {},
                describe_value(tensor),
            )
            self.table.put(tensor, node)
            return node
        name = next((n for n, value in self.module.constants.items() if value is tensor), None)
        if name is None or name in self.constants:
            count = len(self.constants)
            while f"constant{count}" in self.constants or f"constant{count}" in self.module.constants:
                count += 1
            name = f"constant{count}"
        self.constants[name] = tensor
        node = self._create("get_attr", name, (), {}, describe_value(tensor), name=name)
        if id(tensor) not in self.trusted:
            self.log.obstacles.append((node, "unknown-tensor", "a tensor that no recorded operator made"))
        self.table.put(tensor, node)
        return node


class _NodeByNode(Interpreter):
    """The interpreter that tells the recorder which captured node is being executed."""

    def __init__(self, recorder: _Recorder):
        super().__init__(recorder.module)
        self.recorder = recorder

    def run_node(self, node: Node) -> Any:
        self.recorder.position = _Position(node.origins, node.location)
        return super().run_node(node)


_INDEXED = (aten.index.Tensor, aten._unsafe_index.Tensor)

# Operators that return Python numbers which depend on metadata only.
_METADATA_QUERIES = tuple(f"aten::{name}" for name in ("sym_", "size", "stride", "dim", "numel", "is_same_size")) + (
    "prim::",
)


@lru_cache(maxsize=1024)
def _schema_arguments(func: Any) -> tuple[tuple[str, bool, bool, Any], ...]:
    return tuple((a.name, a.kwarg_only, a.has_default_value(), a.default_value) for a in func._schema.arguments)


def complete_arguments(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The call with its schema's defaults filled in, as Listing 5.1 shows them (``alpha=1``); ``None`` defaults of
    keyword-only arguments are left out, they say nothing."""
    positional = list(args)
    named = dict(kwargs)
    for place, (name, keyword_only, has_default, default) in enumerate(_schema_arguments(func)):
        if keyword_only:
            if name not in named and has_default and default is not None:
                named[name] = default
        elif place >= len(positional):
            if name in named:
                positional.append(named.pop(name))
            elif has_default:
                positional.append(list(default) if isinstance(default, list) else default)
            else:
                break
    return tuple(positional), named
