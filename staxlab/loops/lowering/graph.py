"""Lowering as interpretation (Section 6.1): the operator graph is executed, and values are loop nodes.

:class:`GraphLowering` walks the operator graph in topological order. A placeholder becomes an input buffer whose layout
cannot change; a call is handed to its lowering rule, or becomes an extern call; outputs are realized with the strides
eager execution gives them. Nothing is computed and no memory is touched: rules only compose compute functions.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...capture.failing import may_fail
from ...capture.graph import Node, TensorMeta, map_nodes
from ...errors import LoweringError
from ...operators.basis import has_effect, is_random, is_view
from ...operators.graph import OperatorGraph
from ...operators.structure import flatten, rebuild
from ...options import Decision, DeviceSpec, Options
from ..body import record
from ..ir import (
    BufferArgument,
    ComputedBuffer,
    Extern,
    ExternBuffer,
    Index,
    InputBuffer,
    Layout,
    LoopProgram,
    OutputReference,
    Pointwise,
    Reduction,
    Scatter,
)
from ..kinds import NATIVE_DTYPES
from ..layout import contiguous_stride, is_injective, layout_through, same_stride
from ..ops import Ops
from ..realize import DEEPEST_NESTING, LONG_CHAIN, Cost, decide, required
from ..splitting import two_levels
from .call import Call
from .products import library_decision, refusal_on_gpu
from .registry import LIBRARY, RULES, Decline
from .values import Box, TensorValue

#: Users of a reduction that are looked at for one that puts its result together with what was reduced.
MOST_USERS = 64

def lower(
    operators: OperatorGraph,
    device: DeviceSpec,
    options: Options | None = None,
    *,
    forced: Mapping[str, str] | None = None,
) -> LoopProgram:
    """The loop program of an operator graph (Section 6).

    ``forced`` maps names of operator nodes to "realize" or "inline", where the thresholds are not to decide; a value
    that must be in memory stays there. Given at all, if empty, it makes the program list a decision for every value
    that could have gone either way, those with one user too.

    Inputs are the graph's placeholders, in order, then its tensor constants, under their node names. Raises
    LoweringError for a graph that is not pure, and in strict mode for an operator without a lowering rule.
    """
    return GraphLowering(operators, device, options or Options(), forced).run()


class GraphLowering:
    """One lowering in progress."""

    def __init__(
        self, operators: OperatorGraph, device: DeviceSpec, options: Options, forced: Mapping[str, str] | None = None
    ):
        self.forced = forced
        self.operators = operators
        self.device = device
        self.home = operators.home
        self.options = options
        self.values: dict[Node, Any] = {}
        self.inputs: list[InputBuffer] = []
        self.buffers: list[ComputedBuffer | ExternBuffer] = []
        self.dtypes: dict[str, torch.dtype] = {}
        self.decisions: list[Decision] = []
        self.pending: list[tuple[Box, str]] = []
        self.meets_rows_again = False  # what the reductions of the operator at hand reduce rows to
        self.read_whole: dict[Node, bool] = {}
        self.itself: dict[str, Node] = {}  # the output that is the buffer's own tensor
        self.memory_of: dict[str, str] = {}  # buffers to the memory of the sample's results in them, and back
        self.home_of: dict[str, str] = {}
        self.calls = 0

    # -- the walk -----------------------------------------------------------------------------------------------------

    def run(self) -> LoopProgram:
        if self.operators.obstacles:
            first = self.operators.obstacles[0]
            raise LoweringError(
                f"the region is not a pure function of its inputs: {first.reason}",
                where=first.location,
                remedy="run the region through PyTorch's operators, or rewrite this line",
            )
        write_backs = set(self.operators.write_backs)
        for node in self.operators.graph:
            if node in write_backs:
                continue  # after everything that reads the input's old contents
            if node.op == "placeholder":
                self.values[node] = self._input(node)
            elif node.op == "get_attr":
                self.values[node] = self._constant(node)
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            else:
                leaves = flatten(node.args[0])
                memories = self.operators.memories or [None] * len(leaves)
                outputs = tuple(self._output(leaf, m) for leaf, m in zip(leaves, memories, strict=True))
        for node in self.operators.write_backs:
            self._call(node)
        return LoopProgram(tuple(self.inputs), self._ordered(outputs), outputs, tuple(self.decisions))

    def _input(self, node: Node) -> Any:
        if not isinstance(node.val, TensorMeta):
            return node.val
        layout = Layout(node.val.shape, node.val.stride, node.val.dtype, str(node.val.device))
        self.inputs.append(InputBuffer(node.name, layout, node.origins, node.name in self.operators.apart))
        self.itself[node.name], self.memory_of[node.name], self.home_of[node.name] = node, node.name, node.name
        box = Box.stored(node.name, layout, node.origins, is_input=True)
        self.dtypes[node.name] = layout.dtype
        return TensorValue(box)

    def _constant(self, node: Node) -> Any:
        value = self.operators.module.constants[node.target]
        if not isinstance(value, torch.Tensor):
            return value
        if value.dim() == 0 and value.dtype in NATIVE_DTYPES and not any(u.op == "output" for u in node.users):
            number, dtype = value.item(), value.dtype

            def compute(ops: Ops, index: Index) -> Any:
                return ops.tagged(node.origins).constant(number, dtype)

            return TensorValue(Box((), dtype, str(value.device), Pointwise((), dtype, compute, node.origins)))
        return self._input(node)

    def _call(self, node: Node) -> Any:
        if node.target is operator.getitem:
            return self.values[node.args[0]][node.args[1]]
        call = Call(self, node)
        args, kwargs = (map_nodes(a, self.values.__getitem__) for a in (node.args, node.kwargs))
        rule = RULES.get(node.target)
        reason = None if rule is not None and rule.is_view else self._unsupported(node)
        if rule is not None and reason is None:
            mark = (len(self.pending), len(self.decisions))
            try:
                result = rule.function(call, *args, **kwargs)
                self._settle(node, result, rule)
                return result
            except Decline as refusal:
                reason = str(refusal)
            except LoweringError:
                raise
            except Exception as defect:  # a rule that fails is one operator's loss, not the region's
                if os.environ.get("STAXLAB_LOWER_DEBUG"):
                    raise
                reason = f"this case, where its rule failed: {defect!r}"
            del self.pending[mark[0] :], self.decisions[mark[1] :]
        return self._extern(node, args, kwargs, reason if rule is not None else None)

    def _unsupported(self, node: Node) -> str | None:
        """Why no rule may be tried: dtypes, layouts or devices the loop IR does not describe, or its own word."""
        metas = _metas([node.val, *(n.val for n in node.inputs)])
        for meta in metas:
            if meta.dtype not in NATIVE_DTYPES:
                return str(meta.dtype).removeprefix("torch.")
        # A 0-dim constant is a number in the code and lives nowhere.
        placed = _metas([node.val, *(n.val for n in node.inputs if not self._is_number(n))])
        elsewhere = [m.device for m in placed if m.device != self.home]
        if elsewhere:
            return f"tensors on {elsewhere[0]}, where the region's kernels run on {self.home}"
        rule = RULES.get(node.target)
        if rule is None or rule.refuses is None:
            return None
        if rule.kind == "template" and self.device.is_gpu:  # whatever device the samples are on
            return refusal_on_gpu(node, self.device, self.options)
        return rule.refuses(node)

    def _is_number(self, node: Node) -> bool:
        value = self.values.get(node)
        return node.op == "get_attr" and isinstance(value, TensorValue) and not value.box.is_stored

    # -- making values ------------------------------------------------------------------------------------------------

    def _settle(self, node: Node, result: Any, rule: Any) -> None:
        """After a rule: give the results eager's strides, realize the reductions the rule made and whatever must be or
        had better be in memory."""
        for value, meta in zip(_tensors(result), _metas(node.val), strict=True):
            if value.shape != meta.shape or value.dtype != meta.dtype:
                raise LoweringError(
                    f"the lowering rule of {node.target} yields {value.dtype}{list(value.shape)}, not {meta}",
                    where=node.location,
                )
            box = value.box
            if value.view is None and not box.is_stored and is_injective(meta.shape, meta.stride):
                box.stride = meta.stride
            box.label = box.label or node.name
        pending, self.pending = self.pending, []
        self.meets_rows_again = bool(pending) and (rule.passes > 1 or _meets_rows_again(node))
        for box, reason in pending:
            self.realize(box, reason)
        if rule.is_view:
            return
        items = [u for u in node.users if u.target is operator.getitem] if isinstance(result, (tuple, list)) else []
        pairs = [(result[u.args[1]], u) for u in items] if items else [(result, node)]
        for value, place in pairs:
            if isinstance(value, TensorValue) and not value.box.is_stored:
                self._decide(value.box, place)

    def _decide(self, box: Box, node: Node) -> None:
        """Realize at once what some user will need in memory anyway; otherwise let the thresholds speak."""
        readers, forced = self._readers(node)
        fails = isinstance(node.target, torch._ops.OpOverload) and may_fail(node.target, node.args)
        if forced is None and fails and not self._is_read_whole(node):
            forced = "a subscript out of range must be noticed, whoever reads the value"
        if forced is not None:
            self.realize(box, forced)
            return
        if box.depth >= DEEPEST_NESTING:
            self.realize(box, f"compute functions nested {DEEPEST_NESTING} deep")
            return
        unasked = readers < 2 and box.depth < LONG_CHAIN
        if unasked and (self.forced is None or not readers):
            return
        decision = decide(node.name, readers, self._cost(box), self.device)
        if unasked and decision.choice == "realize":
            decision = replace(decision, choice="inline", reason="one user")
        if self.forced and node.name in self.forced:
            by_itself = f"as asked for; left alone: {decision.choice}, {decision.reason}"
            decision = replace(decision, choice=self.forced[node.name], reason=by_itself)
        if decision.choice == "realize":
            self.realize(box, decision.reason, decision)
        elif readers > 1 or self.forced is not None:
            self.decisions.append(decision)

    def _readers(self, node: Node) -> tuple[int, str | None]:
        """How many loops will read the node's value, looking through views; and why it must be in memory, if so."""
        count = 0
        for user in node.users:
            if user.op == "output":
                return count, "an output of the program"
            if user.target is operator.getitem:
                more, forced = self._readers(user)
            else:
                rule = RULES.get(user.target)
                if rule is None or (not rule.is_view and self._unsupported(user)):
                    return count, f"an argument of the extern call {user.target}"
                if rule.kind == "storage view":
                    return count, f"{user.target} addresses storage"
                more, forced = self._readers(user) if rule.is_view else (rule.passes, None)
            if forced is not None:
                return count, forced
            count += more
        return count, None

    def _is_read_whole(self, node: Node) -> bool:
        """Whether some loop is sure to compute every element, though the value itself be inlined. Only plain cases
        are looked through; a view of a part, or an operator that may ignore its argument, decides nothing."""
        if node in self.read_whole:
            return self.read_whole[node]
        self.read_whole[node] = any(self._reads_whole(user, node) for user in node.users)
        return self.read_whole[node]

    def _reads_whole(self, user: Node, node: Node) -> bool:
        rule = RULES.get(user.target)
        if user.op == "output" or rule is None or (not rule.is_view and self._unsupported(user)):
            return True  # it will be in memory
        if rule.kind in ("reduction", "normalization") and user.args[0] is node:
            # The sums in it are kept in memory, because of the subscripts they check if for nothing else.
            first = user.val if isinstance(user.val, TensorMeta) else user.val[0]
            return bool(first.numel) and (rule.passes > 1 or first.numel < node.val.numel)
        if rule.kind == "scan" and user.args[0] is node:
            long = bool(node.val.shape) and node.val.shape[user.args[1]] > 1  # else it is its operand, inlined
            return long and bool(node.val.numel) and bool(user.users)
        if rule.kind == "scatter":
            return bool(user.val.numel) and bool(user.users) and _scatters_whole(user, node)
        return user.target._opname in _READ_ALL and bool(user.val.numel) and self._is_read_whole(user)

    def _cost(self, box: Box) -> Cost:
        layout = Layout.contiguous(box.shape, box.dtype, box.device)
        return Cost.of(record(ComputedBuffer("value", layout, box.data), self.dtypes), self.dtypes, box.dtype)

    def realize(self, box: Box, reason: str, decision: Decision | None = None) -> None:
        """Give the value memory. Its strides are eager's where those are known, else row-major.

        Eager execution orders the strides of an elementwise result by those of its operands, so that reading and
        writing go through memory alike: the rule by which Section 6.4 freezes a flexible layout.
        """
        if box.is_stored:
            return
        if isinstance(box.data, Reduction):
            self._split(box)
        self._store(box, reason, decision)

    def _split(self, box: Box) -> None:
        """Make a reduction with too few outputs for a GPU the second of two levels (Section 6.5)."""
        layout = Layout(box.shape, box.stride or contiguous_stride(box.shape), box.dtype, box.device)
        enabled = self.options.split_reductions
        levels, decision = two_levels(box.data, layout, self.dtypes, self.device, enabled, self.meets_rows_again)
        if decision is not None:
            name = f"buf{len(self.buffers) + (levels is not None)}"  # behind the partial results
            self.decisions.append(replace(decision, subject=box.label or name))
        if levels is None:
            return
        partial = Box(levels.partial.ranges, levels.partial.dtype, box.device, levels.partial)
        partial.stride = levels.stride
        self._store(partial, f"the partial results of {decision.choice} segments")
        box.data = levels.merge(TensorValue(partial).load)

    def _store(self, box: Box, reason: str, decision: Decision | None = None) -> None:
        name = f"buf{len(self.buffers)}"
        stride = box.stride or contiguous_stride(box.shape)
        layout = Layout(box.shape, stride, box.dtype, box.device)
        body = record(ComputedBuffer(name, layout, box.data), self.dtypes)
        self.buffers.append(ComputedBuffer(name, layout, box.data, body.origins | box.data.origins))
        self.decisions.append(decision or required(box.label or name, reason))
        box.name, box.layout = name, layout
        self.dtypes[name] = box.dtype

    # -- extern calls -------------------------------------------------------------------------------------------------

    def _extern(self, node: Node, args: tuple, kwargs: dict[str, Any], declined: str | None) -> Any:
        """Let PyTorch run the operator: arguments in memory as eager has them, results with eager's layouts."""
        meant = node.target in LIBRARY or is_random(node.target) or node in self.operators.write_backs
        reason = "library" if meant else "fallback"
        short = node.target._schema.name.split("::")[-1]
        cause = f"{short} has a lowering, but not for {declined}" if declined else f"{short} has no lowering"
        if reason == "fallback" and self.options.strict_native:
            raise LoweringError(
                f"{node.target} cannot be compiled to a native kernel: {cause}",
                where=node.location,
                remedy="register one (staxlab.register_lowering), or leave strict_native off to run PyTorch's operator",
            )
        if declined:
            why = f"{node.target}: {declined}"
            self.decisions.append(Decision("lower", node.name, "extern", why, ("native", "extern")))
        chosen = library_decision(node, self.device, self.options)
        if chosen is not None:
            self.decisions.append(chosen)
        metas = iter(_argument_metas(node))
        leaves = [self._argument(leaf, next(metas)) for leaf in flatten((args, kwargs))]
        extern_args, extern_kwargs = rebuild((args, kwargs), leaves)
        target = _without_aliasing(node.target)
        cause = cause if reason == "fallback" else ""
        extern = Extern(target, extern_args, extern_kwargs, reason, node.origins, node.location, cause)
        name = f"extern{self.calls}"
        self.calls += 1
        if isinstance(node.val, TensorMeta):
            return self._extern_result(extern, name, None, node.val, node)
        if node.val is None:  # it returns nothing and may raise: an empty buffer stands for its having run
            return self._add_extern(extern, name, None, _NOTHING, _NOTHING.stride)
        return [
            self._extern_result(extern, name, place, meta, node) if isinstance(meta, TensorMeta) else meta
            for place, meta in enumerate(node.val)
        ]

    def _extern_result(
        self, extern: Extern, call: str, position: int | None, meta: TensorMeta, node: Node
    ) -> TensorValue:
        stride = meta.stride if extern.operator is node.target else contiguous_stride(meta.shape)  # a copied view
        value = self._add_extern(extern, call, position, meta, stride)
        if meta.dtype in NATIVE_DTYPES or same_stride(meta.shape, stride, meta.stride):
            return value
        # No generated loop moves such elements, so PyTorch copies them into eager's layout.
        shape, dtype, device = list(meta.shape), meta.dtype, meta.device
        details = (extern.reason, node.origins, node.location, extern.cause)
        empty = torch.ops.aten.empty_strided.default
        room = Extern(empty, (shape, list(meta.stride)), {"dtype": dtype, "device": device}, *details)
        target = self._add_extern(room, f"{call}_room", None, meta, meta.stride)
        arguments = tuple(BufferArgument(v.box.name, v.box.layout) for v in (target, value))
        copied = Extern(torch.ops.aten.copy.default, arguments, {}, *details)
        return self._add_extern(copied, f"{call}_copy", None, meta, meta.stride)

    def _add_extern(
        self, extern: Extern, call: str, position: int | None, meta: TensorMeta, stride: tuple[int, ...]
    ) -> TensorValue:
        name = f"buf{len(self.buffers)}"
        layout = Layout(meta.shape, stride, meta.dtype, str(meta.device))
        self.buffers.append(ExternBuffer(name, layout, extern, call, position, extern.origins))
        self.dtypes[name] = meta.dtype
        return TensorValue(Box.stored(name, layout))

    def _argument(self, leaf: Any, meta: Any) -> Any:
        if not isinstance(leaf, TensorValue):
            return leaf
        name, layout = self.stored_view(leaf, meta, "an argument of an extern call")
        return BufferArgument(name, layout)

    def stored_view(self, value: TensorValue, meta: TensorMeta, reason: str) -> tuple[str, Layout]:
        """A buffer and the layout in it that shows ``value`` with exactly eager's strides; copies where that is not
        possible in place."""
        box = value.box
        if not box.is_stored:
            if value.view is None and is_injective(meta.shape, meta.stride):
                box.stride = meta.stride
            self.realize(box, reason)
        layout = layout_through(box.layout, value.view)
        if layout is not None and same_stride(meta.shape, layout.stride, meta.stride):
            return box.name, Layout(meta.shape, meta.stride, layout.dtype, layout.device, layout.offset)
        return self._copied(value, meta, reason)

    def _copied(self, value: TensorValue, meta: TensorMeta, reason: str) -> tuple[str, Layout]:
        if value.dtype not in NATIVE_DTYPES:
            raise LoweringError(f"{reason} of {value.dtype} needs a copy that no generated loop can make")
        copy = Box(value.shape, value.dtype, value.device, None)
        copy.data = Pointwise(value.shape, value.dtype, lambda ops, index: value.load(ops, index), value.origins)
        if is_injective(meta.shape, meta.stride):
            copy.stride = meta.stride
        self.realize(copy, f"{reason}, in the layout it needs")
        return copy.name, copy.layout

    # -- the end ------------------------------------------------------------------------------------------------------

    def _output(self, leaf: Any, memory: str | None) -> OutputReference:
        if not isinstance(leaf, Node):
            return OutputReference(None, constant=leaf)
        value = self.values[leaf]
        if not isinstance(value, TensorValue):
            return OutputReference(None, constant=value, origins=leaf.origins)
        if _is_pending(leaf):
            raise LoweringError(
                f"the result %{leaf.name} has a pending conjugation or negation, which kernels carry out",
                where=leaf.location,
                remedy="return it resolved: .resolve_conj(), .resolve_neg()",
            )
        name, layout = self.stored_view(value, leaf.val, "an output of the program")
        if memory is not None:
            name, layout = self._in_memory(memory, name, layout, value, leaf)
        # One result is the buffer's tensor itself, as an input is when it is returned; others are tensors of their own.
        fresh = leaf is not self.itself.setdefault(name, leaf)
        return OutputReference(name, layout, origins=leaf.origins, fresh=fresh)

    def _in_memory(self, memory: str, name: str, layout: Layout, value: TensorValue, leaf: Node) -> tuple[str, Layout]:
        """What results share in eager execution they must share here, the caller's memory above all; and what they do
        not share they must not. The second can be mended by a copy; the first cannot, since most operators that PyTorch
        runs give their results in memory of their own. A result without elements shares no byte with anything, whatever
        made it: it looks at the memory it belongs to if that has its dtype, and otherwise has its own."""
        home = self.home_of.get(memory, name)
        if layout.numel == 0 and home != name:
            if self.dtypes[home] != layout.dtype:
                return name, layout
            return home, Layout(layout.shape, layout.stride, layout.dtype, layout.device)
        if self.memory_of.setdefault(name, memory) != memory:
            name, layout = self._copied(value, leaf.val, "a result that shares no memory")
            self.memory_of[name] = memory
        if self.home_of.setdefault(memory, name) != name:
            raise LoweringError(
                f"the result %{leaf.name} is a view of %{memory} by an operator that kernels have as a copy only",
                where=leaf.location,
                remedy="return a copy (.clone()) if nobody relies on the shared memory",
            )
        return name, layout

    def _ordered(self, outputs: Sequence[OutputReference]) -> tuple[ComputedBuffer | ExternBuffer, ...]:
        """The buffers somebody needs, each after those it reads.

        They mostly stand in the order they were realized. A value realized late is read by closures made earlier, so
        reads are recorded again then and the order follows them (no cycle can arise: a value is only made from older
        ones, and every closure reads only what it was made from).
        """
        reads: dict[str, list[str]] = {}
        by_name = {buffer.name: buffer for buffer in self.buffers}
        groups: dict[str, list[str]] = {}
        effects: set[str] = set()  # what must run, whoever reads it
        for buffer in self.buffers:
            if isinstance(buffer, ExternBuffer):
                leaves = flatten((buffer.data.args, buffer.data.kwargs))
                reads[buffer.name] = [leaf.name for leaf in leaves if isinstance(leaf, BufferArgument)]
                groups.setdefault(buffer.call, []).append(buffer.name)
                if has_effect(buffer.data.operator, buffer.data.args):
                    effects.add(buffer.name)
            else:
                body = record(buffer, self.dtypes)
                reads[buffer.name] = [access.buffer for access in body.reads()]
                if isinstance(buffer.data, Scatter):
                    reads[buffer.name].append(buffer.data.base)
                if body.may_fail:
                    effects.add(buffer.name)
        ordered: dict[str, None] = {}

        def visit(name: str) -> None:
            if name in ordered or name not in by_name:
                return
            for source in reads[name]:
                visit(source)
            buffer = by_name[name]
            for member in groups[buffer.call] if isinstance(buffer, ExternBuffer) else (name,):
                ordered[member] = None

        needed = {output.name for output in outputs} | effects
        alive = _reachable(needed, reads)
        for buffer in self.buffers:
            if buffer.name in alive:
                visit(buffer.name)
        return tuple(by_name[name] for name in ordered)


def _is_pending(node: Node) -> bool:
    """Whether PyTorch has only noted that the value is to be conjugated or negated."""
    noted = {torch.ops.aten._conj.default: False, torch.ops.aten._neg_view.default: False}
    while node.op == "call_function":
        if node.target in noted:
            noted[node.target] = not noted[node.target]
        elif node.target is not operator.getitem and not is_view(node.target):
            break
        node = node.args[0]
    return any(noted.values())


def _reachable(roots: set[str | None], reads: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    stack = [name for name in roots if name is not None]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += reads.get(name, ())
    return found


# Operators whose loops read each element of every argument, in order to compute an element of their result.
_READ_ALL = frozenset(
    "add sub rsub mul div neg abs sqrt rsqrt exp log tanh sigmoid relu gelu silu _to_copy clone maximum minimum cat "
    "stack view _unsafe_view reshape t permute transpose unsqueeze squeeze expand alias detach".split()
)


def _meets_rows_again(node: Node) -> bool:
    """Whether what a reduction yields, or what is made of it element by element, is put together with as many elements
    as were reduced: in a softmax written out, a row and its sum."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Node) or not isinstance(first.val, TensorMeta) or not isinstance(node.val, TensorMeta):
        return False
    seen: set[Node] = set()
    open_ones = list(node.users)
    while open_ones and len(seen) < MOST_USERS:
        user = open_ones.pop()
        if user in seen or not isinstance(user.val, TensorMeta):
            continue
        seen.add(user)
        if user.val.numel == first.val.numel > node.val.numel:
            return True
        if user.val.numel == node.val.numel:
            open_ones += user.users
    return False


def _scatters_whole(user: Node, node: Node) -> bool:
    """Whether a scatter reads all of ``node``: what it copies, slices, and of elements those that have a subscript."""
    if user.args[0] is node:
        return True
    if user.target._opname in ("index_add", "index_copy", "index_reduce"):
        return user.args[3] is node
    is_source = user.target._opname.startswith("scatter") and user.args[3] is node
    return is_source and user.args[2].val.shape == node.val.shape


_NOTHING = TensorMeta((0,), (1,), torch.uint8, torch.device("cpu"))


def _without_aliasing(target: Any) -> Any:
    """The copying twin of a view operator: a buffer never aliases another one's memory."""
    if any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns):
        packet = getattr(torch.ops.aten, f"{target._opname}_copy", None)
        return getattr(packet, target._overloadname, target) if packet is not None else target
    return target


def _tensors(result: Any) -> list[TensorValue]:
    return [leaf for leaf in flatten(result) if isinstance(leaf, TensorValue)]


def _metas(val: Any) -> list[TensorMeta]:
    return [leaf for leaf in flatten(val) if isinstance(leaf, TensorMeta)]


def _argument_metas(node: Node) -> list[Any]:
    return [leaf.val if isinstance(leaf, Node) else None for leaf in flatten((node.args, node.kwargs))]
