"""What one eager operator costs (Table 1.1): the tensors it reads, the tensors it writes, the arithmetic it does.

The model of Section 1.1 sees an operator as a black box beside main memory: it reads every tensor argument once, writes
every result once, and keeps nothing in between. Three refinements keep the count honest:

* *views are free*: they move no element, only the description of a tensor changes;
* *only distinct elements count*: a row broadcast to a matrix is one row of memory, and ``x * x`` reads ``x`` once;
* *metadata is not data*: ``zeros_like(x)`` asks for the shape of ``x``, ``out=`` and ``copy_`` overwrite their target
  without reading it.

Arithmetic is counted in scalar operations with the costs of ``loops.ops.OPERATIONS`` (an addition 1, an exponential
10), so that eager and compiled executions are measured with one yardstick.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import Node, TensorMeta, nodes_in
from ..loops.ir import BufferArgument, Extern, Layout
from ..loops.ops import OPERATIONS

#: Views without an alias annotation in their schema.
UNANNOTATED_VIEWS = {"_unsafe_view", "_reshape_alias"}

#: Results that are allocated but not filled.
UNFILLED = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"}

#: In-place operators that overwrite their first argument without reading it.
OVERWRITING = {"copy_", "fill_", "zero_", "uniform_", "normal_", "bernoulli_", "random_", "exponential_"}

#: Operators that read only the elements of their first tensor that an index selects.
GATHERS = {"embedding", "index", "index_select", "gather", "take", "take_along_dim", "_unsafe_index"}

#: Operators that move or convert elements and compute nothing.
MOVES = {
    "clone", "copy", "copy_", "_to_copy", "to", "contiguous", "cat", "stack", "index", "index_select", "gather", "take",
    "embedding", "constant_pad_nd", "flip", "roll", "repeat", "fill", "fill_", "zero_", "scatter", "index_put",
    "index_put_", "slice_scatter", "select_scatter", "_unsafe_index", "masked_fill", "tril", "triu", "lift_fresh_copy",
    "slice_backward", "select_backward", "diagonal_backward", "index_copy", "index_fill",
}  # fmt: skip

#: Scalar operations per element of the first tensor, for operators that reduce or normalise.
PER_INPUT_ELEMENT = {
    "sum": 1, "mean": 1, "amax": 1, "amin": 1, "max": 1, "min": 1, "prod": 1, "any": 1, "all": 1, "argmax": 1,
    "argmin": 1, "cumsum": 1, "cumprod": 1, "var": 4, "std": 4, "var_mean": 4, "logsumexp": 13, "norm": 2,
    "linalg_vector_norm": 2, "_softmax": 14, "_log_softmax": 14, "softmax": 14, "log_softmax": 14,
    "native_layer_norm": 8, "native_batch_norm": 8, "native_group_norm": 8, "_native_batch_norm_legit": 8,
    "_native_batch_norm_legit_no_training": 4, "_softmax_backward_data": 4, "_log_softmax_backward_data": 13,
    "native_layer_norm_backward": 21, "native_group_norm_backward": 21, "native_batch_norm_backward": 21,
    "batch_norm_backward": 21, "_fused_rms_norm_backward": 12,
}  # fmt: skip

#: Operators that merge scattered elements: which of their tensors has as many elements as are merged.
MERGES = {"scatter_add": 1, "scatter_reduce": 1, "index_add": 2, "index_reduce": 2, "embedding_dense_backward": 0}

#: Scalar operations per element of the result, for the adjoints of elementwise operators and of losses.
PER_RESULT_ELEMENT = {
    "gelu_backward": 33, "tanh_backward": 3, "sigmoid_backward": 3, "silu_backward": 18, "mish_backward": 55,
    "leaky_relu_backward": 3, "elu_backward": 18, "hardtanh_backward": 4, "hardswish_backward": 7,
    "hardsigmoid_backward": 5, "softplus_backward": 16, "softshrink_backward": 4, "hardshrink_backward": 4,
    "logit_backward": 7, "log_sigmoid_backward": 10, "threshold_backward": 2, "glu_backward": 19,
    "_prelu_kernel_backward": 6, "native_dropout_backward": 2, "_masked_scale": 2, "mse_loss_backward": 3,
    "smooth_l1_loss_backward": 9, "huber_loss_backward": 10, "binary_cross_entropy_backward": 7,
    "soft_margin_loss_backward": 17, "nll_loss_backward": 6, "nll_loss2d_backward": 6,
}  # fmt: skip

#: Names of pointwise operators that differ from the scalar operation they apply.
SCALAR_NAMES = {
    "div": "truediv", "true_divide": "truediv", "floor_divide": "floordiv", "clamp_min": "maximum",
    "clamp_max": "minimum", "special_erf": "erf", "silu": "sigmoid", "gelu": "erf", "hardtanh": "maximum",
    "softplus": "log1p",
}  # fmt: skip


def operator_name(target: Any) -> str:
    """``add`` for ``aten.add.Tensor``. TypeError for a target that is not an operator overload."""
    if not isinstance(target, torch._ops.OpOverload):
        raise TypeError(
            f"the byte model counts operator overloads such as aten.add.Tensor, not {target!r}; "
            "give it the operator graph (compilation.operators), not the captured one"
        )
    return target._opname


def is_view(target: torch._ops.OpOverload) -> bool:
    """Whether the operator only re-describes its argument: its results alias it and nothing is written."""
    if operator_name(target) in UNANNOTATED_VIEWS:
        return True
    aliases = [r.alias_info for r in target._schema.returns]
    return bool(aliases) and all(a is not None and not a.is_write for a in aliases)


# --- Elements of memory -----------------------------------------------------------------------------------------------


def distinct_elements(meta: TensorMeta) -> int:
    """How many different elements of storage a tensor's elements are: a stride of 0 repeats, an overlap shares.

    Exact for every layout whose dimensions do not interleave (all that eager operators make); otherwise the span of
    storage is the bound.
    """
    if meta.numel == 0:
        return 0
    dims = sorted((abs(s), n) for n, s in zip(meta.shape, meta.stride, strict=True) if s != 0 and n != 1)
    span, disjoint = 1, True
    for stride, extent in dims:
        disjoint = disjoint and stride >= span
        span += (extent - 1) * stride
    count = math.prod(extent for _, extent in dims)
    return count if disjoint else min(count, span)


def storage_span(meta: TensorMeta) -> int:
    """Elements of storage from its start to the last one the tensor addresses."""
    if meta.numel == 0:
        return 0
    return meta.storage_offset + 1 + sum((n - 1) * s for n, s in zip(meta.shape, meta.stride, strict=True))


def union_elements(metas: Iterable[TensorMeta]) -> int:
    """Distinct elements of several tensors that share one storage (say ``x`` and ``x.t()``). Exact up to 2**26
    elements of storage, by marking them; above that, the smaller of the sum and the span."""
    different = list(dict.fromkeys((m.shape, m.stride, m.storage_offset, m.dtype.itemsize) for m in metas))
    views = [TensorMeta(s, t, torch.uint8, torch.device("cpu"), storage_offset=o) for s, t, o, _ in different]
    if len(views) <= 1:
        return sum(map(distinct_elements, views))
    span = max(map(storage_span, views))
    if span > 1 << 26:
        return min(span, sum(map(distinct_elements, views)))
    marks = torch.zeros(span, dtype=torch.bool)
    for view in views:
        window(marks, view).fill_(True)
    return int(marks.sum())


def window(storage: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """The elements of a storage that a tensor addresses, each repeated dimension (stride 0) taken once."""
    shape = tuple(min(n, 1) if s == 0 else n for n, s in zip(meta.shape, meta.stride, strict=True))
    return storage.as_strided(shape, meta.stride, meta.storage_offset)


# --- Reads and writes of a node ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """A tensor an operator reads or writes: its description, and whose storage it is (the node that made it and which
    of its results, or the name of a buffer)."""

    root: Any
    meta: TensorMeta


class Roots:
    """Which storage each value of an operator graph lives in, found by following views and in-place results."""

    def __init__(self) -> None:
        self._of: dict[tuple[Node, int], tuple[Node, int]] = {}

    def operands(self, node: Node) -> list[Operand]:
        """The tensors a value consists of (one, several for a tuple, none for a number)."""
        metas = node.val if isinstance(node.val, (tuple, list)) else [node.val]
        return [
            Operand(self._of.get((node, i), (node, i)), m) for i, m in enumerate(metas) if isinstance(m, TensorMeta)
        ]

    def define(self, node: Node) -> None:
        """Record where the results of ``node`` live. Call in topological order."""
        count = len(node.val) if isinstance(node.val, (tuple, list)) else 1
        if node.target is operator.getitem and isinstance(node.args[0], Node):
            source, position = node.args
            position = position % max(len(source.val), 1) if isinstance(position, int) else 0
            self._of[node, 0] = self._of.get((source, position), (source, position))
            return
        source = self.aliased(node)
        for i in range(count):
            self._of[node, i] = (node, i) if source is None else self._of.get((source, 0), (source, 0))

    @staticmethod
    def aliased(node: Node) -> Node | None:
        """The node whose storage the results of ``node`` share, if any: the argument of a view or in-place operator."""
        if node.op != "call_function" or node.target is operator.getitem:
            return None
        if is_view(node.target):
            return next(iter(nodes_in(node.args)), None)
        return next(iter(written_arguments(node)), None)


def written_arguments(node: Node) -> list[Node]:
    """The arguments an operator writes into (in-place and ``out=`` operators); empty for a pure one."""
    found: list[Node] = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        found += nodes_in((value,))
    return found


def arguments_read(target: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a call whose elements it needs. Views and metadata-only operators need none, and what is only
    overwritten is not read."""
    name = operator_name(target)
    if is_view(target) or name.endswith("_like") or name.startswith("new_"):
        return []
    unread: set[str] = set()
    parameters = target._schema.arguments
    if name in OVERWRITING:
        unread = {parameters[0].name}
    elif target._overloadname.endswith("out"):
        unread = {p.name for p in parameters if p.alias_info is not None and p.alias_info.is_write}
    given = [value for p, value in zip(parameters, args, strict=False) if p.name not in unread]
    return given + [value for key, value in kwargs.items() if key not in unread]


def reads(node: Node, roots: Roots) -> list[Operand]:
    """The tensors whose elements ``node`` needs."""
    needed = dict.fromkeys(nodes_in(tuple(arguments_read(node.target, node.args, node.kwargs))))
    return [operand for n in needed for operand in roots.operands(n)]


def writes(node: Node, roots: Roots) -> list[Operand]:
    """The tensors ``node`` fills."""
    if is_view(node.target) or operator_name(node.target) in UNFILLED:
        return []
    return roots.operands(node)


def is_gather(target: torch._ops.OpOverload) -> bool:
    """Whether the operator reads only the elements of its first tensor that an index selects."""
    return operator_name(target) in GATHERS


def counted(operands: Iterable[Operand]) -> dict[Any, tuple[int, int]]:
    """Distinct (elements, bytes) per storage: tensors that share one are counted together."""
    by_root: dict[Any, list[Any]] = {}
    for operand in operands:
        by_root.setdefault(operand.root, []).append(operand.meta)
    found = {}
    for root, metas in by_root.items():
        elements = union_elements(metas)
        found[root] = (elements, elements * metas[0].dtype.itemsize)
    return found


def gathered(operands: list[Operand], written: int) -> dict[Any, tuple[int, int]]:
    """A gather reads as many elements of its table as it selects (``written``), and its indices."""
    if not operands:
        return {}
    table, found = operands[0], counted(operands[1:])
    selected = min(counted([table])[table.root][0], written)
    elements, nbytes = found.pop(table.root, (0, 0))
    return {table.root: (selected + elements, selected * table.meta.dtype.itemsize + nbytes), **found}


# --- Arithmetic -------------------------------------------------------------------------------------------------------


def operations(node: Node) -> int:
    """Scalar operations of an operator of an operator graph, in the units of ``loops.ops.OPERATIONS``."""
    first = node.val[0] if isinstance(node.val, (tuple, list)) and node.val else node.val
    return scalar_operations(node.target, node.args, node.kwargs, first)


def extern_operations(call: Extern, results: Sequence[Layout]) -> int:
    """Scalar operations of a call that PyTorch runs, library or fallback: the same count as for eager execution."""
    return scalar_operations(call.operator, call.args, call.kwargs, results[0] if results else None)


def extern_operands(call: Extern) -> list[Operand]:
    """The tensors an extern call reads; the root of each is the name of its buffer."""
    needed = arguments_read(call.operator, call.args, call.kwargs)
    return [Operand(a.name, _meta(a.layout)) for value in needed for a in _buffers(value)]


def scalar_operations(target: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], first: Any) -> int:
    """Scalar operations of a call whose tensors are graph nodes or buffers; ``first`` describes its first result."""
    name = operator_name(target).removesuffix("_") or target._opname
    if is_view(target) or name in MOVES or name + "_" in MOVES or name in UNFILLED:
        return 0
    tensors = _tensors((args, kwargs))
    results = first.numel if isinstance(first, (TensorMeta, Layout)) else 0
    if not tensors:
        return 0  # a factory fills memory; filling computes nothing
    if name in ("mm", "bmm", "mv", "dot", "vdot"):
        return 2 * results * tensors[0].shape[-1]
    if name in ("addmm", "baddbmm", "addmv"):
        return 2 * results * tensors[1].shape[-1] + 2 * results
    if name in ("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution"):
        # Every element of the result (of the argument, if transposed) meets every weight of its group once.
        transposed = len(args) > 6 and args[6] is True
        return 2 * (tensors[0].numel if transposed else results) * math.prod(tensors[1].shape[1:])
    if name == "convolution_backward":
        # Two convolutions of the same size, one for the argument and one for the weight; each only if asked for.
        return sum(args[-1][:2]) * 2 * (tensors[1] if args[7] else tensors[0]).numel * math.prod(tensors[2].shape[1:])
    own = target.namespace == "staxlab" and name.startswith("attention")
    if own and name.endswith("_backward"):  # of the two upstream gradients one may be missing; the result has its shape
        given = sum(gradient is not None for gradient in args[:2])
        tensors = [tensors[given + 3], *tensors[given:]]
    if (own or name.startswith("_scaled_dot_product")) and name.endswith("_backward"):
        upstream, query, key = tensors[:3]  # five products instead of two: the scores are computed again
        scores = math.prod(query.shape[:-1]) * key.shape[-2]
        forth = 2 * query.shape[-1] + PER_INPUT_ELEMENT["softmax"]
        return scores * (
            forth + 4 * query.shape[-1] + 4 * upstream.shape[-1] + PER_INPUT_ELEMENT["_softmax_backward_data"]
        )
    if own or name.startswith("_scaled_dot_product") or name == "scaled_dot_product_attention":
        query, key, value = tensors[:3]
        scores = math.prod(query.shape[:-1]) * key.shape[-2]
        return scores * (2 * query.shape[-1] + PER_INPUT_ELEMENT["softmax"] + 2 * value.shape[-1])
    if name in PER_INPUT_ELEMENT:
        extra = results if name in ("mean", "var", "std") else 0
        return PER_INPUT_ELEMENT[name] * tensors[0].numel + extra
    if name in MERGES:
        return tensors[MERGES[name]].numel
    if name in PER_RESULT_ELEMENT:
        return PER_RESULT_ELEMENT[name] * results
    rule = OPERATIONS.get(SCALAR_NAMES.get(name, name))
    return results * (rule.cost if rule else 1)


def _buffers(value: Any) -> list[BufferArgument]:
    """The buffers inside nested containers of a call's arguments."""
    if isinstance(value, BufferArgument):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for part in value for found in _buffers(part)] if isinstance(value, (tuple, list)) else []


def _tensors(value: Any) -> list[TensorMeta | Layout]:
    """What the tensors of a call look like, left to right, with repetitions."""
    nodes = [v for n in nodes_in(value) for v in (n.val if isinstance(n.val, (tuple, list)) else [n.val])]
    return [v for v in nodes if isinstance(v, TensorMeta)] + [b.layout for b in _buffers(value)]


def _meta(layout: Layout) -> TensorMeta:
    device = torch.device(layout.device)
    return TensorMeta(layout.shape, layout.stride, layout.dtype, device, storage_offset=layout.offset)
