"""Writing at subscripts read from data (Table 6.1): the last lines of a scatter's kernel.

The program instances of a scatter run in no order, so two that hit one element must not read, add and write it in
between each other: the hardware's atomic operations do all three at once. For floating-point sums the order of the
additions, and with it the last bits, then differs from run to run. Where every iteration provably writes an element of
its own (:func:`staxlab.loops.disjoint.is_one_to_one`) a load and a store do.
"""

from __future__ import annotations

import torch

from ...errors import CodegenError
from ...loops.disjoint import is_one_to_one
from ...loops.expressions import Expr
from ...schedule.records import ScheduleNode
from .handler import BlockValue, TritonOps

#: Nobody waits for another instance's element, so no other memory access has to be ordered with it.
ATOMICS = {"sum": "tl.atomic_add", "amax": "tl.atomic_max", "amin": "tl.atomic_min"}

#: The operation of ``loops.ops`` that merges two elements.
MERGES = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum"}


def is_atomic(node: ScheduleNode) -> bool:
    """Whether several iterations may hit one element and are combined."""
    assert node.body is not None
    return node.reduction != "store" and not is_one_to_one(node.body)


def write_scatter(ops: TritonOps, node: ScheduleNode, pointer: str, target: Expr, value: BlockValue) -> str:
    """The last line of the kernel, which sends ``value`` to the storage subscript ``target``. CodegenError for what has
    no atomic operation: products, extremes of floating-point numbers (whose NaN must win), and narrow dtypes."""
    space, kind, dtype = ops.emission.space, str(node.reduction), node.store_dtype
    address, _ = ops.address(pointer, space.flatten(target), space.all)
    mask, _ = ops.mask_for(space.all)
    end = f", {mask}" if mask else ""
    if kind == "store":
        return f"tl.store({address}, {value}{end})"
    if is_atomic(node):
        name = _atomic(node.name, kind, dtype)
        return f"{name}({address}, {ops.broadcast(value)}{end}, sem='relaxed')"
    stored = "" if dtype not in (torch.float16, torch.bfloat16) else ".to(tl.float32)"
    before = ops.emit(f"tl.load({address}{end}){stored}", value.dtype, space.all, note="what stands there")
    return f"tl.store({address}, {ops.apply(MERGES[kind], before, value)}{end})"


def _atomic(name: str, kind: str, dtype: torch.dtype | None) -> str:
    whole = dtype in (torch.int32, torch.int64)
    if kind not in ATOMICS or not (whole or (kind == "sum" and dtype in (torch.float32, torch.float64))):
        raise CodegenError(f"{name}: there is no atomic operation for a scatter by {kind} of {dtype}")
    return ATOMICS[kind]
