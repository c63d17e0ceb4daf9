"""Tracing the joint graph (Section 5.3, Algorithm 5.1).

No backward graph is derived here. PyTorch's engine runs one backward pass on the sample, and the dispatcher is asked
which operators it took, as for the forward pass (:mod:`staxlab.operators.record`). The two recordings share one table
of tensors, so what the engine reads of the forward pass is an edge to the node that computed it: a hook on saved
tensors tells which value autograd packs, and gives that very value back when the engine asks for it.

The same hook answers two more questions. What eager execution would have kept in memory is the list of packed values.
And a value that was modified after it was packed, on which eager's backward raises an error, shows by its version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..capture.graph import Node, TensorMeta, describe_value
from ..capture.isolation import Versions
from ..capture.module import GraphModule
from ..errors import LoweringError
from ..operators.basis import is_random
from ..operators.graph import Obstacle
from ..operators.record import Position, Recorder, run_node_by_node
from ..operators.structure import flatten
from ..operators.tensors import Entry, ViewStep
from ..options import Options
from .graph import JointGraph, Result

__all__ = ["JointRecorder", "joint_graph"]

aten = torch.ops.aten


def joint_graph(
    module: GraphModule,
    inputs: list[Any],
    options: Options | None = None,
    *,
    basis: frozenset[torch._ops.OpOverload] | None = None,
) -> JointGraph:
    """Run ``module`` and its backward on the sample ``inputs``; return what was dispatched (Algorithm 5.1).

    ``inputs`` are the values of the placeholders; those that require grad get gradients. ``basis`` as in
    :func:`staxlab.operators.record.record`. One eager forward and backward in time and memory. Exceptions of the
    program pass through with a note naming the node.
    """
    if options is None or not options.double_backward:
        return JointRecorder(module, basis).trace_joint(inputs)
    joint = JointRecorder(module, basis).trace_joint(inputs, keep_drawn=True)
    return replace(joint, undecomposed=JointRecorder(module, None).trace_joint(inputs, keep_drawn=True))


class JointRecorder(Recorder):
    """Records a forward pass with autograd on, then the backward pass the engine makes of it."""

    def __init__(self, module: GraphModule, basis: frozenset[torch._ops.OpOverload] | None):
        super().__init__(module, basis)
        self.in_forward = self.in_backward = False
        self.unrecorded: dict[int, ViewStep] = {}  # views made under no_grad, by id
        self.differentiably = False
        self.positions: dict[int, Position] = {}  # of the forward call with this autograd sequence number
        self.packed: dict[Node, None] = {}
        self.unpacked: set[Node] = set()
        self.stale: list[Obstacle] = []

    def trace_joint(self, inputs: list[Any], *, keep_drawn: bool = False) -> JointGraph:
        """Run forward and backward. ``keep_drawn`` makes random values outputs of the forward pass, and has the engine
        take the operators that can be differentiated in their turn (it has others for some adjoints)."""
        self.differentiably = keep_drawn
        leaves = [_leaf(value) for value in inputs]
        self._trust_constants()
        self._define_inputs(leaves)
        versions = Versions(value for value in inputs if isinstance(value, torch.Tensor))
        primals = self.graph.placeholders
        try:
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                with self:
                    returned = flatten(self._run_forward(leaves))
                outputs, results = self._results(returned, leaves)
                mark = self.graph.nodes[-1] if len(self.graph) else None
                tangents = self._tangents(outputs)
                gradients = self._backward(outputs, tangents, leaves)
        finally:
            versions.restore()
        recorded = self.graph.nodes
        backward = set(recorded[recorded.index(mark) + 1 :] if mark is not None else recorded)
        drawn = _drawn(recorded, backward) if keep_drawn else []
        tangents += [None] * len(drawn)
        output_nodes = (*(self.table.get(tensor).node for tensor in outputs), *drawn)
        self.position = Position()
        write_backs = self._write_back(leaves)
        obstacles = self._written_inputs(leaves) + self._vectors_up_to_a_phase(backward, output_nodes)
        self.graph.set_output((output_nodes, tuple(gradients)))
        self._drop_aliases()
        self._remove_dead(write_backs)
        self.graph.check()
        output_nodes, gradients = self.graph.output.args[0]
        alive = set(self.graph.nodes)
        return JointGraph(
            GraphModule(self.graph, self.constants),
            tuple(describe_value(value) for value in leaves),
            tuple(primals),
            tuple(tangents),
            output_nodes,
            gradients,
            frozenset(backward & alive),
            results,
            tuple(drawn),
            tuple(node for node in self._saved_by_eager() if node in alive),
            tuple(write_backs),
            (*self._obstacles(alive), *self.stale, *obstacles),
            tuple(self.log.decomposed),
            tuple(self.writes.counts.get(node, 0) for node in primals),
            apart=self._apart(leaves),
        )

    # -- forward ------------------------------------------------------------------------------------------------------

    def _run_forward(self, leaves: list[Any]) -> Any:
        self.in_forward = True
        try:
            return run_node_by_node(self, leaves)
        except RuntimeError as error:
            if "a leaf Variable that requires grad is being used in an in-place operation" not in str(error):
                raise
            raise LoweringError(
                "an input that requires grad is modified in place",
                where=self.position.location,
                remedy="write into a copy (.clone()), or where no gradient is needed under torch.no_grad()",
            ) from error
        finally:
            self.in_forward = False

    def _pack(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int, Node]:
        """Autograd keeps a value: the tensor that holds its contents now, the object itself and its version."""
        in_forward, self.in_forward = self.in_forward, False
        with torch.no_grad(), self:
            node = self.node_of(tensor)
        self.in_forward = in_forward
        entry = self.table.get(tensor)
        value = tensor if entry is None or entry.value is None else entry.value
        if not self.in_backward:
            self.packed[node] = None
        return value, tensor, tensor._version, node

    def _unpack(self, packed: tuple[torch.Tensor, torch.Tensor, int, Node]) -> torch.Tensor:
        value, tensor, version, node = packed
        self.unpacked.add(node)
        if tensor._version != version:
            reason = "a value that the backward pass needs is modified in place later; eager's backward() raises"
            self.stale.append(Obstacle(node.name, "saved-write", reason, node.location))
        return value

    def _results(self, returned: list[Any], leaves: list[Any]) -> tuple[list[torch.Tensor], tuple[Result, ...]]:
        """Split what the function returns into forward outputs and the views to be replayed on them or on inputs."""
        places = {id(leaf): place for place, leaf in enumerate(leaves)}
        by_placeholder = {node: place for place, node in enumerate(self.graph.placeholders)}
        sharing: dict[Any, int] = {}
        tensors = list({id(t): t for t in returned if isinstance(t, torch.Tensor)}.values())
        for tensor in tensors:
            self.node_of(tensor)
            memory = self.table.get(tensor).memory
            sharing[memory] = sharing.get(memory, 0) + 1
        outputs: list[torch.Tensor] = []
        positions: dict[int, int] = {}

        def deliver(tensor: torch.Tensor) -> int:
            if id(tensor) not in positions:
                positions[id(tensor)] = len(outputs)
                outputs.append(tensor)
            return positions[id(tensor)]

        results: list[Result] = []
        for leaf in returned:
            if not isinstance(leaf, torch.Tensor):
                results.append(Result(None, constant=leaf))
                continue
            entry = self.table.get(leaf)
            memory = entry.memory
            if id(leaf) in places:
                results.append(Result("input", places[id(leaf)]))
            elif entry.home is not None:
                place = by_placeholder[entry.home.placeholder]
                results.append(Result("input", place, self._replayed(entry.chain[entry.home.depth :])))
            elif sharing[memory] > 1 and entry.chain:
                results.append(Result("output", deliver(self._first_of(leaf)), self._replayed(entry.chain)))
            else:
                results.append(Result("output", deliver(leaf)))
        return outputs, tuple(results)

    def _first_of(self, leaf: torch.Tensor) -> torch.Tensor:
        """The tensor that a result is a view of. What was written into it is part of autograd's graph under that name:
        the contents that the recorder keeps were computed below autograd."""
        base = self.table.get(leaf).owner.tensor
        self.node_of(base)
        if leaf.requires_grad and not base.requires_grad:
            raise LoweringError(
                "a result looks at memory whose tensor has been given another shape in place",
                where=self.table.get(leaf).node.location,
                remedy="use the operation that returns another tensor: x.t() for x.t_()",
            )
        return base

    def _define_view(self, tensor: torch.Tensor, node: Node, viewed: torch.Tensor, step: ViewStep) -> Entry:
        entry = super()._define_view(tensor, node, viewed, step)
        if self.in_forward and entry.chain and not torch.is_grad_enabled():
            self.unrecorded[id(entry.chain[-1])] = entry.chain[-1]
        return entry

    def _replayed(self, chain: tuple[ViewStep, ...]) -> tuple[ViewStep, ...]:
        """The views of a chain, each in the gradient mode it was made in."""
        return tuple(_Unrecorded(**vars(step)) if id(step) in self.unrecorded else step for step in chain)

    # -- backward -----------------------------------------------------------------------------------------------------

    def _tangents(self, outputs: list[torch.Tensor]) -> list[Node | None]:
        """A placeholder for the upstream gradient of each differentiable output (Algorithm 5.1, line 3)."""
        nodes: list[Node | None] = []
        self.seeds: list[torch.Tensor | None] = []
        for number, output in enumerate(outputs, 1):
            if not output.requires_grad:
                nodes.append(None)
                self.seeds.append(None)
                continue
            seed = torch.ones_like(output.detach())
            forward = self.table.get(output).node
            node = self.graph.create(
                "placeholder",
                f"tangents_{number}",
                name=f"tangents_{number}",
                origins=forward.origins,
                location=forward.location,
                val=describe_value(seed),
            )
            self.table.define(seed, node)
            nodes.append(node)
            self.seeds.append(seed)
        return nodes

    def _backward(
        self, outputs: list[torch.Tensor], tangents: list[Node | None], leaves: list[Any]
    ) -> list[Node | None]:
        """Let the engine run (line 4). Returns the node of each primal's gradient."""
        wanted = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        traced = [(output, seed) for output, seed in zip(outputs, self.seeds, strict=True) if seed is not None]
        if not traced or not wanted:
            return [None] * len(leaves)
        with self:
            found = self._run_engine([output for output, _ in traced], [seed for _, seed in traced], wanted)
            nodes = {id(leaf): self.node_of(g) for leaf, g in zip(wanted, found, strict=True) if g is not None}
        return [nodes.get(id(leaf)) for leaf in leaves]

    def _run_engine(
        self, outputs: list[torch.Tensor], seeds: list[torch.Tensor], wanted: list[torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        """One backward pass under the mode, which must be on. Autocast is off, as it is for who calls ``backward()``
        after the ``with`` block of the forward pass."""
        self.in_backward = True
        device = outputs[0].device.type
        try:
            with (
                torch.autocast(device, enabled=False),
                torch.autocast("cpu", enabled=False),
                torch.autograd.set_detect_anomaly(False),  # its search for NaN would be recorded
            ):
                # `torch.autograd.grad` is this call behind checks that import sympy.
                return torch.autograd.Variable._execution_engine.run_backward(
                    tuple(outputs),
                    tuple(seeds),
                    self.differentiably,
                    self.differentiably,
                    tuple(wanted),
                    True,
                    accumulate_grad=False,
                )
        finally:
            self.in_backward = False

    def _create(self, op: str, target: Any, args: tuple, kwargs: dict, val: Any, *, name: str | None = None) -> Node:
        """A node knows which forward call it stems from: autograd numbers its own nodes in the order of the calls that
        make them, and the engine says whose turn it is."""
        if self.in_backward:
            running = torch._C._current_autograd_node()
            number = running._sequence_nr() if running is not None else -1
            self.position = self.positions.get(number, Position())
            if target is aten.mul.Tensor and running is not None and _distributes_evenly(running, args):
                target, args = aten.where.ScalarOther, (*args, 0)
            if target in _BATCH_NORMS and not self.differentiably and args[7] is not False:
                args = (*args[:3], None, None, *args[5:])
        else:
            self.positions[torch._C._autograd._get_sequence_nr() - 1] = self.position
        node = super()._create(op, target, args, kwargs, val, name=name)
        if self.in_backward:
            node.meta["autograd_node"] = number
        return node

    # -- the graph ----------------------------------------------------------------------------------------------------

    def _written_inputs(self, leaves: list[Any]) -> list[Obstacle]:
        """An input that is modified is given its new contents at the end; the derivative of that is not recorded."""
        found = []
        for leaf in leaves:
            entry = self.table.get(leaf) if isinstance(leaf, torch.Tensor) else None
            if entry is None or entry.home is None or entry.memory.version == 0:
                continue
            contents = entry.memory.value
            if leaf.requires_grad or contents.requires_grad:
                node = entry.home.placeholder
                reason = f"%{node.name} is modified in place where gradients are recorded"
                found.append(Obstacle(node.name, "gradient-write", reason, node.location))
        return found

    def _vectors_up_to_a_phase(self, backward: set[Node], outputs: tuple[Node, ...]) -> list[Obstacle]:
        """Complex eigenvectors and singular vectors have a gradient only for some upstream gradients. Eager execution
        looks at their values and raises for the others; under a mode it does not look."""
        found = []
        for node in self.graph:
            if node.target not in _UP_TO_A_PHASE or node in backward:
                continue
            places = _UP_TO_A_PHASE[node.target]
            vectors = [item for item in node.users if item.args[1] in places and item.val.dtype.is_complex]
            used = [v for v in vectors if v in outputs or any(user not in backward for user in v.users)]
            if used and any(user in backward for item in node.users for user in (item, *item.users)):
                reason = (
                    "complex vectors have a gradient only where it does not depend on their phase, which data decide"
                )
                found.append(Obstacle(node.name, "phase", reason, node.location))
        return found

    def _saved_by_eager(self) -> list[Node]:
        """What is packed and then asked for: the rest belongs to values that nobody returns, and dies with them."""
        return list(dict.fromkeys(self.behind.get(node, node) for node in self.packed if node in self.unpacked))

    def _drop_aliases(self) -> None:
        """``detach`` says something to autograd and nothing to a graph of values."""
        self.behind: dict[Node, Node] = {}  # what an alias stood for
        for node in self.graph.nodes:
            if node.target in (aten.detach.default, aten.alias.default) and isinstance(node.args[0], Node):
                self.behind[node] = node.args[0]
                node.replace_all_uses_with(node.args[0])


class _Unrecorded(ViewStep):
    """A view made under ``no_grad``: a leaf for autograd, whatever it looks at."""

    def __call__(self, viewed: Any) -> Any:
        with torch.no_grad():
            return super().__call__(viewed)


#: Decompositions into vectors that are unique up to a factor, and which of their results those are.
_UP_TO_A_PHASE = {aten.linalg_eig.default: (1,), aten._linalg_eigh.default: (1,), aten._linalg_svd.default: (0, 2)}


def _drawn(nodes: list[Node], backward: set[Node]) -> list[Node]:
    """The random numbers that the forward pass draws. Where an operator delivers them and what it makes of its argument
    with them, the latter is computed again (:mod:`.second_order`), for it depends on the argument."""
    found = []
    for node in nodes:
        if node in backward or not isinstance(node.target, torch._ops.OpOverload) or not is_random(node.target):
            continue
        if node.target in _NUMBERS_DRAWN:
            found += [item for item in node.users if item.args[1] in _NUMBERS_DRAWN[node.target]]
        elif isinstance(node.val, TensorMeta):
            found.append(node)
        else:
            found += [item for item in node.users if isinstance(item.val, TensorMeta)]
    return found


#: Which results of a random operator with several are the random numbers themselves.
_NUMBERS_DRAWN = {aten.native_dropout.default: (1,)}


#: Adjoints of batch norms whose fourth and fifth arguments, the running statistics, mean nothing in training (the
#: eighth, where it is a flag, says whether it is). They would be saved, and new ones could not stand where the old do.
_BATCH_NORMS = (
    aten.native_batch_norm_backward.default,
    aten.batch_norm_backward.default,
    aten.cudnn_batch_norm_backward.default,
)


#: What finds one element of a whole tensor, and whose derivative is shared out among those equal to it.
_SELECTING = ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0")


def _distributes_evenly(running: Any, args: tuple) -> bool:
    """Whether the engine is about to multiply a mask by an equal share of the upstream gradient. On the CPU PyTorch
    fills the share in where the mask holds, but multiplies while a dispatch mode listens, and 0 times NaN or infinity
    is not 0."""
    if running.name() not in _SELECTING or len(args) != 2 or not all(isinstance(a, Node) for a in args):
        return False
    mask = args[0].val
    return isinstance(mask, TensorMeta) and mask.dtype == torch.bool and mask.device.type == "cpu"


def _leaf(value: Any) -> Any:
    """An input as a tensor of a graph of our own, looking at the same memory. Also where it requires no grad: what is
    written into it may, and autograd would note that on the caller's tensor."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)
