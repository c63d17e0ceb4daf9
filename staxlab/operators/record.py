"""Recording at the dispatcher (Sections 4.8 and 5.1): which operator overloads does a graph of Python calls reach?

A captured node says ``F.gelu`` or ``operator.add``; which kernel that is depends on the dtypes, on the rank, on type
promotion, on what a composite function is made of. The dispatcher knows, so it is asked: the graph is run once more on
the real sample, node by node, under a dispatch mode that writes down every overload it meets. The result is an
:class:`OperatorGraph` over ``aten`` overloads, which is all the back end ever sees.

Two rewritings happen on the way. An operator outside the back end's *basis* (Definition 4.2: the overloads it has a
lowering rule or a library call for) is replaced by its decomposition rule, run under the same mode so that its parts
are recorded and, where needed, decomposed in turn; this ends because the rules refer to one another without cycles
(Proposition 4.3). Random operators stay whole: taken apart they would consume the random state differently. And writes
into tensors become new values (:mod:`.functionalize`). What the graph must not contain, because a later run could
differ from the sample, is written down as an :class:`Obstacle`.

The sample is executed for real (Section 3.3), one eager execution; intermediates die as they do in eager mode, since
the recorder knows tensors by identity through weak references only (:mod:`.tensors`).
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.graph import Graph, Node, describe_value, nodes_in
from ..capture.isolation import Versions
from ..capture.module import GraphModule, Interpreter
from ..capture.values import call_with_autocast
from ..options import Options
from ..provenance import NO_ORIGINS, Origins, SourceLocation
from .basis import (
    LIBRARY_NORMS,
    SPECTRA,
    VECTORS_TOO,
    complete_arguments,
    decomposition_of,
    has_effect,
    is_faithful,
    is_random,
    is_view,
    written_arguments,
)
from .depth import CyclicRulesError
from .functionalize import Functionalizer, NotCovered
from .graph import Decomposed, Obstacle, OperatorGraph
from .structure import flatten, rebuild
from .tensors import Entry, Home, TensorTable, ViewStep, storage_key

__all__ = ["Decomposed", "Obstacle", "OperatorGraph", "Recorder", "record"]

aten = torch.ops.aten
_forward_ad = vars(torch.autograd.forward_ad)


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
    recorder = Recorder(module, basis)
    with torch.no_grad():
        return recorder.trace(inputs)


@dataclass(frozen=True)
class Position:
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


class Recorder(TorchDispatchMode):
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
        self.table = TensorTable()
        self.writes = Functionalizer(self)
        self.position = Position()
        self.captured: Node | None = None  # the node being executed
        self.expanding: list[Any] = []  # operators whose rules are running, the outermost first
        self.log = _Log()
        self.trusted: dict[int, torch.Tensor] = {}  # literals of the program, by id

    # -- the run ------------------------------------------------------------------------------------------------------

    def trace(self, inputs: list[Any]) -> OperatorGraph:
        self._trust_constants()
        self._define_inputs(inputs)
        versions = Versions(value for value in inputs if isinstance(value, torch.Tensor))
        try:
            with self:
                result = run_node_by_node(self, inputs)
        finally:
            versions.restore()  # an in-place operator counts before it comes here
        return self._finish(result, inputs)

    def _finish(self, result: Any, inputs: list[Any]) -> OperatorGraph:
        """The record of a run on ``inputs`` that gave ``result``."""
        self.position = Position()
        leaves = flatten(result)
        outputs = rebuild(result, [self._output(leaf) for leaf in leaves])
        memories = [self._memory_of(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        write_backs = self._write_back(inputs)
        self.graph.set_output(outputs)
        self._remove_dead(write_backs)
        self.graph.check()
        alive = set(self.graph.nodes)
        return OperatorGraph(
            GraphModule(self.graph, self.constants),
            tuple(describe_value(value) for value in inputs),
            tuple(write_backs),
            tuple(node for node in self.log.mutations if node in alive),
            self._obstacles(alive),
            tuple(self.log.decomposed),
            tuple(memories),
            tuple(self.writes.counts.get(node, 0) for node in self.graph.placeholders),
            self._apart(inputs),
        )

    def _apart(self, inputs: list[Any]) -> frozenset[str]:
        """The inputs whose memory is no other input's: what is written into them shows nowhere else."""
        memories = iter(self.writes.inputs)
        found = {
            node.name: next(memories)
            for node, value in zip(self.graph.placeholders[: len(inputs)], inputs, strict=True)
            if isinstance(value, torch.Tensor)
        }
        count = Counter(map(id, found.values()))
        alone = (name for name, memory in found.items() if count[id(memory)] == 1 and memory.protected is None)
        return frozenset(alone)

    def _trust_constants(self) -> None:
        for value in self.module.constants.values():
            if isinstance(value, torch.Tensor):
                self.trusted[id(value)] = value

    def _obstacles(self, alive: set[Node]) -> tuple[Obstacle, ...]:
        entries = [entry for entry in self.log.obstacles if entry[0] in alive]
        return tuple(Obstacle(node.name, kind, reason, node.location) for node, kind, reason in entries)

    def _define_inputs(self, inputs: list[Any]) -> None:
        for placeholder, value in zip(self.module.graph.placeholders, inputs, strict=True):
            node = self.graph.create(
                "placeholder",
                placeholder.target,
                name=placeholder.name,
                origins=placeholder.origins,
                location=placeholder.location,
                val=describe_value(value),
            )
            if not isinstance(value, torch.Tensor):
                continue
            entry = self.table.define(value, node)
            entry.home = entry.memory.home = Home(node, entry.reference)
        self.writes.share([value for value in inputs if isinstance(value, torch.Tensor)])

    def _output(self, leaf: Any) -> Any:
        """The node of a returned value. What looks at a modified input is, as in eager execution, that input itself
        (its contents will have been written back), not the value the input was given."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if (known := self.table.get(leaf)) is not None:
            self.position = Position(known.node.origins, known.node.location)
        node = self.node_of(leaf)
        entry = self.table.get(leaf)
        if entry.memory.literal and entry.memory.version == 0:
            with self:  # the caller may write into what it gets
                base = entry.owner.tensor if entry.owner is not None else leaf
                self.writes.replace(entry.memory, base.clone())
                return self.node_of(leaf)
        if entry.home is None or entry.memory.version == 0:
            return node
        node, tensor = entry.home.placeholder, self.writes.current(entry.home.tensor())
        for step in entry.chain[entry.home.depth :]:
            result = step.function(tensor, *step.args, **dict(step.kwargs))
            node = self._create(
                "call_function", step.function, (node, *step.args), dict(step.kwargs), describe_value(result)
            )
            tensor = result if step.part is None else result[step.part]
            if step.part is not None:
                node = self._create("call_function", operator.getitem, (node, step.part), {}, describe_value(tensor))
        return node

    def _memory_of(self, leaf: torch.Tensor) -> str:
        entry = self.table.get(leaf)
        return entry.memory.name if entry.home is None else entry.home.placeholder.name

    def _write_back(self, inputs: list[Any]) -> list[Node]:
        """The only effect that remains: every modified input gets its new contents."""
        nodes = []
        for value in {id(value): value for value in inputs if isinstance(value, torch.Tensor)}.values():
            entry = self.table.get(value)
            if entry is not None and entry.home is entry.memory.home and entry.memory.version > 0:
                placeholder, contents = entry.home.placeholder, self.table.get(entry.memory.value).node
                self.position = Position(contents.origins, contents.location)
                nodes.append(
                    self._create(
                        "call_function", aten.copy_.default, (placeholder, contents), {}, describe_value(value)
                    )
                )
        return nodes

    def _remove_dead(self, write_backs: list[Node]) -> None:
        """Operators nobody reads go, unless running them is their point: random ones advance the generator, writes
        and exceptions are effects, and obstacles must be seen."""
        kept = {node for node, _, _ in self.log.obstacles} | set(write_backs)
        for node in reversed(self.graph.nodes):
            overload = isinstance(node.target, torch._ops.OpOverload)
            effect = node in kept or (overload and has_effect(node.target, node.args))
            if node.op in ("call_function", "get_attr") and not node.users and not effect:
                self.graph.erase(node)
        for name in [n for n in self.constants if not any(x.op == "get_attr" and x.target == n for x in self.graph)]:
            del self.constants[name]

    # -- the mode -----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in LIBRARY_NORMS:
            with self:
                return decomposition_of(func)(*args, **kwargs)
        if func in VECTORS_TOO and self.captured is not None:
            derived = args[0].requires_grad and torch.is_grad_enabled() or _forward_ad["_current_level"] >= 0
            if self.captured.target_name().rpartition(".")[2] in SPECTRA and not derived:
                args = (*complete_arguments(func, args, kwargs)[0][:2], False)
        written = written_arguments(func, args, kwargs)
        if written:
            try:
                return self.writes.write(func, args, kwargs)
            except NotCovered as reason:
                return self._write_for_real(func, args, kwargs, written, reason)
        only_read = not is_view(func)
        args = self.writes.present(args, only_read=only_read)
        kwargs = self.writes.present(kwargs, only_read=only_read)
        if self.basis is not None and func not in self.basis and not is_random(func):
            done, result = self._try_decomposition(func, args, kwargs)
            if done:
                return result
        result = func(*args, **kwargs)
        self._write_down(func, args, kwargs, result)
        if func._opname in _UNINITIALIZED and torch.are_deterministic_algorithms_enabled():
            return self._filled(result)
        return result

    def _filled(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where algorithms are to be deterministic, eager execution fills what is allocated: with NaN, or with the
        largest number of an integer dtype."""
        dtype = tensor.dtype
        if dtype.is_floating_point or dtype.is_complex:
            value: Any = torch.nan
        else:
            value = True if dtype == torch.bool else torch.iinfo(dtype).max
        with self:
            filled = aten.fill.Scalar(tensor, value)
        if filled.stride() != tensor.stride():
            reason = "memory with gaps is allocated, and filled because algorithms are to be deterministic"
            self.log.obstacles.append((self.node_of(filled), "uninitialized", reason))
        return filled

    def _write_for_real(
        self, func: Any, args: tuple, kwargs: dict[str, Any], written: list[torch.Tensor], reason: NotCovered
    ) -> Any:
        """A write that is not covered: an obstacle. The run goes on, on copies where memory is not the program's."""
        node_args, node_kwargs = complete_arguments(func, self._nodes_for(args), self._nodes_for(kwargs))
        targets = [self.table.get(target) for target in written]
        owned = all(entry.memory.home is None and not entry.memory.protected for entry in targets)
        args, kwargs = self.writes.present(args), self.writes.present(kwargs)
        if not owned:
            args, kwargs = _cloned(args), _cloned(kwargs)
        result = func(*args, **kwargs)
        node = self._create("call_function", func, node_args, node_kwargs, describe_value(result))
        self.log.mutations.append(node)
        names = ", ".join(f"%{entry.node.name}" for entry in targets)
        self.log.obstacles.append((node, reason.kind, f"{func} writes into {names}: {reason}"))
        known = {id(leaf) for leaf in flatten((args, kwargs)) if isinstance(leaf, torch.Tensor)} if owned else set()
        self._register(node, result, known)
        return result if func._schema.returns else None

    def _try_decomposition(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[bool, Any]:
        """Run the rule for ``func`` under this mode. All or nothing: a rule that refuses, fails, leads out of ``aten``,
        would make the graph depend on data, or yields other shapes, strides or dtypes than the operator itself (which
        is run to compare) leaves no trace, and the operator is recorded whole."""
        rule = decomposition_of(func)
        if rule is None or not is_faithful(func, args, kwargs):
            return False, None
        if func in self.expanding:
            raise CyclicRulesError((*self.expanding[self.expanding.index(func) :], func))
        mark = len(self.graph)
        before = self.log.lengths()
        self.expanding.append(func)
        try:
            with self:
                result = rule(*args, **kwargs)
            added = self.graph.nodes[mark:]
            failed = (
                result is NotImplemented or len(self.log.obstacles) > before[1] or any(map(self._is_foreign, added))
            )
        except CyclicRulesError:
            raise
        except Exception:  # whatever a rule trips over, the operator itself will either do or report properly
            failed, result = True, None
        finally:
            self.expanding.pop()
        composite = func._can_decompose()
        if not failed and not composite:
            failed = describe_value(result) != describe_value(func(*args, **kwargs))
        if failed:
            self._roll_back(mark, before)
            return False, None
        if not composite:
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
        if func is aten.lift_fresh.default:
            self._trust(args[0])
        if isinstance(result, torch.Tensor) and any(result is leaf for leaf in flatten((args, kwargs))):
            return  # an operator that hands its argument back is no operation
        node_args, node_kwargs = complete_arguments(func, self._nodes_for(args), self._nodes_for(kwargs))
        node = self._create("call_function", func, node_args, node_kwargs, describe_value(result))
        self._note_dependence_on_data(node, func, args, result)
        self._register(node, result, set(), (func, args, kwargs) if is_view(func) else None)

    def _trust(self, tensor: torch.Tensor) -> None:
        """``torch.tensor([1., 2.])`` is a literal of the program: the same at every run, so the graph may keep it. Not
        so ``torch.tensor([n, 2.])`` with a tensor ``n``, which PyTorch reads out of the dispatcher's sight."""
        self.trusted[id(tensor)] = tensor
        if self.table.get(tensor) is None and self.captured is not None and _builds_on_tensors(self.captured):
            node = self.node_of(tensor)
            reason = "the values of tensors become part of a literal (torch.stack keeps them in the graph)"
            self.log.obstacles.append((node, "data-dependent", reason))

    def _register(self, node: Node, result: Any, known: set[int], view: tuple | None = None) -> None:
        """Remember which tensors ``node`` defines; results of an operator with several get a ``getitem`` each.
        ``view`` is the call of a view operator, whose results look at its first argument's memory."""
        if isinstance(result, torch.Tensor):
            self._define(result, node, known, view, None)
        elif isinstance(result, (tuple, list)):
            for position, part in enumerate(result):
                if isinstance(part, torch.Tensor) and id(part) not in known:
                    name, val = f"{node.name}_{position}", describe_value(part)
                    item = self._create("call_function", operator.getitem, (node, position), {}, val, name=name)
                    self._define(part, item, known, view, position)

    def _define(self, tensor: torch.Tensor, node: Node, known: set[int], view: tuple | None, part: int | None) -> None:
        if id(tensor) in known:
            return
        if tensor.layout != torch.strided or tensor.is_quantized:
            self.log.obstacles.append((node, "unsupported-tensor", f"a tensor of layout {tensor.layout}"))
        viewed = view[1][0] if view is not None else None
        # Some operators (reshape) give a view where that is possible and else a copy.
        aliases = isinstance(viewed, torch.Tensor) and storage_key(tensor) == storage_key(viewed)
        if aliases and self.table.get(viewed) is not None:
            func, args, kwargs = view
            self._define_view(tensor, node, args[0], ViewStep(func, args[1:], tuple(kwargs.items()), part))
        else:
            self.table.define(tensor, node)

    def _define_view(self, tensor: torch.Tensor, node: Node, viewed: torch.Tensor, step: ViewStep) -> Entry:
        try:
            chain, is_plain = self.writes.chain(viewed, tensor, step)
        except NotCovered as reason:
            chain, is_plain = (*self.table.get(viewed).chain, step), False
            self.log.obstacles.append((node, reason.kind, f"{step.function} is called, and {reason}"))
        entry = self.table.define_view(tensor, node, viewed, chain, is_plain)
        # The dispatcher is shown a detach, which shares the version counter; the attribute's tensor does not.
        captured = self.captured
        if captured is not None and captured.target is getattr and captured.args[1] == "data":
            entry.counted = False
        return entry

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
            and not _numbers_are_sizes(func)
        ):
            self.log.obstacles.append((node, "data-dependent", f"{func} reads a tensor's value into Python"))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _create(self, op: str, target: Any, args: tuple, kwargs: dict, val: Any, *, name: str | None = None) -> Node:
        return self.graph.create(
            op, target, args, kwargs, name=name, origins=self.position.origins, location=self.position.location, val=val
        )

    def _nodes_for(self, argument: Any) -> Any:
        return rebuild(
            argument, [self.node_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in flatten(argument)]
        )

    def node_of(self, tensor: torch.Tensor) -> Node:
        """The node that defines a tensor's value as of now; a constant for a tensor no operator made."""
        if self.writes.active:
            self.writes.current(tensor)
        entry = self.table.get(tensor)
        if entry is not None:
            return entry.node
        base = self.table.sharing_storage(tensor) if id(tensor) not in self.trusted else None
        return self._constant(tensor) if base is None else self._unseen_view(tensor, base)

    def _unseen_view(self, tensor: torch.Tensor, base: torch.Tensor) -> Node:
        """A tensor made without the dispatcher (``x.data``): the memory of a known one, seen alike or otherwise."""
        alike = tensor.stride() == base.stride() and tensor.storage_offset() == base.storage_offset()
        if alike and tensor.shape == base.shape:
            step = ViewStep(aten.alias.default, ())
        else:
            offset = None if tensor.storage_offset() == base.storage_offset() else tensor.storage_offset()
            step = ViewStep(aten.as_strided.default, (list(tensor.shape), list(tensor.stride()), offset))
        node = self._create(
            "call_function", step.function, (self.node_of(base), *step.args), {}, describe_value(tensor)
        )
        self._define_view(tensor, node, base, step).counted = False
        return node

    def _constant(self, tensor: torch.Tensor) -> Node:
        name = next((n for n, value in self.module.constants.items() if value is tensor), None)
        literal = name is None
        if name is None or name in self.constants:
            count = len(self.constants)
            while f"constant{count}" in self.constants or f"constant{count}" in self.module.constants:
                count += 1
            name = f"constant{count}"
        if literal:  # kept as another object: the program may go on to reshape its own in place (x.t_())
            with torch._C._DisableTorchDispatch():
                self.constants[name] = tensor.detach()
        else:
            self.constants[name] = tensor
        node = self._create("get_attr", name, (), {}, describe_value(tensor), name=name)
        if id(tensor) not in self.trusted:
            self.log.obstacles.append((node, "unknown-tensor", "a tensor that no recorded operator made"))
        memory = self.table.define(tensor, node).memory
        memory.literal = literal
        if not literal:
            memory.protected = ("constant", "a constant of the program")
        return node


def _cloned(structure: Any) -> Any:
    return rebuild(structure, [x.clone() if isinstance(x, torch.Tensor) else x for x in flatten(structure)])


def run_node_by_node(recorder: Recorder, inputs: list[Any]) -> Any:
    """Run the recorder's module on ``inputs`` under its mode, which must be on; returns what the module returns."""
    return _NodeByNode(recorder).run(*inputs)


class _NodeByNode(Interpreter):
    """The interpreter that tells the recorder which captured node is being executed."""

    def __init__(self, recorder: Recorder):
        super().__init__(recorder.module)
        self.recorder = recorder

    def run_node(self, node: Node) -> Any:
        self.recorder.position, self.recorder.captured = Position(node.origins, node.location), node
        return super().run_node(node)


_UNINITIALIZED = frozenset("empty empty_like empty_strided empty_permuted new_empty new_empty_strided".split())

# Calls that make a tensor of Python data, and the place of the data among their arguments.
_LITERALS = (
    (torch.tensor, 0), (torch.as_tensor, 0), (torch.asarray, 0), ("new_tensor", 1), (torch.Tensor.new_tensor, 1),
)  # fmt: skip


def _builds_on_tensors(node: Node) -> bool:
    """Whether a captured call makes a tensor out of a Python list with tensors in it: the literal's data, or a list
    among the subscripts of ``x[:, [n, 0]]``."""
    target, args = node.target, node.args
    if target is call_with_autocast:
        _, target, *args = args
    if target is operator.getitem or target is operator.setitem:
        subscripts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(nodes_in(subscript) for subscript in subscripts if isinstance(subscript, list))
    place = next((place for maker, place in _LITERALS if target is maker or target == maker), None)
    return place is not None and bool(nodes_in((tuple(args[place:]), node.kwargs)))


_INDEXED = (aten.index.Tensor, aten._unsafe_index.Tensor)

# Operators that return Python numbers which depend on metadata only.
def _numbers_are_sizes(func: Any) -> bool:
    """Whether an operator's schema calls every number among its results a size, ``SymInt``: attention of CUDA libraries
    returns the numbers of queries and keys beside its tensors."""
    returns = str(func._schema).rpartition("->")[2].strip(" ()").split(",")
    numbers = [part.split()[0] for part in returns if part and not part.strip().startswith("Tensor")]
    return bool(numbers) and all(kind == "SymInt" for kind in numbers)


_METADATA_QUERIES = (
    *(f"aten::{name}" for name in "sym_ size stride dim numel is_same_size _has_same_storage_numel".split()),
    "prim::",
)
