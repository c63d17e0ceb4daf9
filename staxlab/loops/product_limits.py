"""Which products of matrices are small enough for loops of our own on a CPU (Table 6.1).

:data:`LIMITS` says where the border lies; ``python -m benchmarks.products`` measures it. It is a matter of time alone:
a library and a template both add ``depth`` products, within the error bound of Section 6.5 of each other. What is said
here is said from metadata alone, so that whoever divides a graph before it is lowered (Section 5.4) sees what lowering
will do (:mod:`.lowering.products`), without loading it.
"""

from __future__ import annotations

import torch

from ..capture.graph import Node, TensorMeta

#: From how many multiplications on a product of matrices is the library's, by dtype: the largest power of two below
#: which every product measured was faster as a template, on one core with AVX-512
#: (benchmarks/results/products_cpu.json). Integers have no vendor's routine: loops of our own win at nearly every size.
LIMITS = {
    torch.float32: 1 << 17, torch.float64: 1 << 16, torch.bfloat16: 1 << 19, torch.float16: 1 << 19,
    torch.int64: 1 << 24, torch.int32: 1 << 24, torch.int16: 1 << 19, torch.int8: 1 << 19, torch.uint8: 1 << 19,
}  # fmt: skip

#: The same for a matrix times a vector and for a product of vectors, which are reductions.
VECTOR_LIMITS = dict.fromkeys(LIMITS, 1 << 16)


def dimensions(node: Node) -> tuple[int, int, int, int]:
    """``(batch, rows, columns, depth)`` of a product operator's node, from the shapes of its two factors; a vector is a
    matrix of one row or column. ``addbmm`` sums over its batch, which is depth then."""
    first, second = (argument.val.shape for argument in _factors(node))
    if len(first) == 3:
        batch, rows, depth = first
        if node.target._opname == "addbmm":
            return 1, rows, second[2], batch * depth
        return batch, rows, second[2], depth
    rows, depth = first if len(first) == 2 else (1, first[0])
    return 1, rows, second[1] if len(second) == 2 else 1, depth


def _factors(node: Node) -> tuple[Node, Node]:
    position = _FIRST_FACTOR.get(node.target._opname, 0)
    return node.args[position], node.args[position + 1]


_FIRST_FACTOR = {"addmm": 1, "baddbmm": 1, "addbmm": 1, "addmv": 1}


def multiplications(node: Node) -> int:
    """``batch * rows * columns * depth``."""
    batch, rows, columns, depth = dimensions(node)
    return batch * rows * columns * depth


def refusal(node: Node) -> str | None:
    """Why a product is the library's business; None if it is small."""
    meta = node.val
    if not isinstance(meta, TensorMeta) or meta.device.type != "cpu":
        return "products on a GPU, which the library computes on units of their own"
    limits = LIMITS if len(_factors(node)[1].val.shape) > 1 else VECTOR_LIMITS
    if meta.dtype not in limits:
        return f"products of {str(meta.dtype).removeprefix('torch.')}"
    count, limit = multiplications(node), limits[meta.dtype]
    if count >= limit:
        name = str(meta.dtype).removeprefix("torch.")
        return f"{count:,} multiplications: from {limit:,} of {name} on the library's loops make up for its call"
    return None
