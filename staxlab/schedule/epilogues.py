"""Epilogues of products: elementwise nodes done on the tile while it is in registers (Section 9.8).

A template leaves its product, tile by tile, in registers. An elementwise node that reads it can do its work there,
before the store: of ``relu(A B + b)`` the product then never reaches memory, which saves writing and reading ``m n``
elements. What fuses is what can be put into one-to-one correspondence with the tiles:

* one template, first in the order of the program, and elementwise nodes over as many points (no reduction);
* each reads the product, or what an earlier epilogue made of it, at the very element that its own tile holds
  (:func:`corresponding`: its loops, merged or transposed as they may be, are written as the template's);
* none writes in place or aliases: every node writes a buffer of its own, and scatters have kernels of their own.

Elementwise nodes *before* a product need no rule here: lowering has inlined those into its operands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from ..loops.body import MemoryAccess
from ..loops.expressions import ZERO, Expr, Symbol
from .records import ScheduleNode

#: Orders of a node's loops that are tried.
MOST_ORDERS = 6


def refusal(nodes: tuple[ScheduleNode, ...]) -> tuple[str, str]:
    """The rule, and why, that forbids nodes in the order of the program to be a product and its epilogue, as far as
    their kinds and sizes say; empty strings if none does."""
    product, *rest = nodes
    if product.kind != "template":
        return "space", "what comes before a product is inlined into its operands, or stands alone"
    for node in rest:
        if node.kind != "pointwise":
            return "space", f"an epilogue has no {node.kind}: its tiles are not those of the product"
        if node.numel != product.numel:
            return "space", f"{node.numel} points are not the {product.numel} of the product"
    if product.reduction_numel == 0 or product.is_empty:
        return "space", "an empty product"
    return "", ""


def corresponding(nodes: tuple[ScheduleNode, ...]) -> tuple[ScheduleNode, ...] | None:
    """The nodes with the elementwise ones written over the loops of the template, so that each reads of the others the
    element that it makes; None if there is no such way, or one reads nothing that the others write."""
    product, *rest = nodes
    assert product.body is not None
    still = {symbol: ZERO for symbol in product.body.indices if symbol.upper == 0}  # loops of one iteration

    def place(access: MemoryAccess) -> Expr:
        return access.index.substitute(still)

    written = {product.buffers[0]: place(product.writes[0])}
    found = [product]
    for node in rest:
        for candidate in over_tiles(node, product):
            reads = [a for a in candidate.reads if a.buffer in written]
            if reads and all(place(access) == written[access.buffer] for access in reads):
                found.append(candidate)
                written[node.buffers[0]] = place(candidate.writes[0])
                break
        else:
            return None
    return tuple(found)


def over_tiles(node: ScheduleNode, product: ScheduleNode) -> Iterator[ScheduleNode]:
    """The ways of writing an elementwise node over the loops of a template with as many points: the order of its own
    loops first, then others, flattened and cut into the template's."""
    body, target = node.body, product.body
    assert body is not None and target is not None
    loops = list(zip(body.indices, node.ranges, strict=True))
    orders = itertools.permutations(zip(target.indices, product.ranges, strict=True))
    for symbols in itertools.islice(orders, MOST_ORDERS):
        flat = Expr.of(0)
        for symbol, extent in symbols:
            flat = flat * extent + symbol
        values: dict[Symbol, Expr] = {}
        stride = 1
        for symbol, extent in reversed(loops):
            values[symbol] = (flat // stride) % extent
            stride *= extent
        yield _substituted(node, values, target.indices)


def _substituted(node: ScheduleNode, values: dict[Symbol, Expr], indices: tuple[Symbol, ...]) -> ScheduleNode:
    body = node.body
    assert body is not None

    def access(old: MemoryAccess) -> MemoryAccess:
        return replace(old, index=old.index.substitute(values), symbols=indices)

    return replace(
        node, body=body.substitute(values, indices, ()), ranges=tuple(int(s.upper) + 1 for s in indices),
        reads=tuple(map(access, node.reads)), writes=tuple(map(access, node.writes)),
    )  # fmt: skip


def saved_bytes(node: ScheduleNode, itemsize: int) -> int:
    """What fusing the epilogue saves where nobody else needs the product: writing it, and reading it for each member
    that does."""
    product = node.product
    if product is None or len(node.members) < 2:
        return 0
    readers = sum(any(a.buffer == product.buffers[0] for a in m.reads) for m in node.members[1:])
    kept = product.buffers[0] in node.buffers
    return math.prod(product.ranges) * itemsize * (readers + (not kept))
