"""Cutting few long rows into blocks on a GPU, for pairs of reductions of which one needs the other (Section 6.5).

Splitting a reduction in two levels (:mod:`staxlab.loops.splitting`) knows one reduction at a time. A softmax has two, a
maximum and a sum relative to it, and a variance has a mean and deviations from it: split one by one, each reads the
row. Cut into blocks first, a block is a row of its own, whose two values one pass finds, and those of all blocks are
merged: by Proposition 9.1, or as Chan, Golub and LeVeque (1983) merge sums of squared deviations.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...options import Decision
from ..layout import contiguous_stride, numel
from ..splitting import TOPIC, SplitRule, left_whole
from .call import Call
from .values import TensorValue


def block_length(call: Call, x: TensorValue, dims: Sequence[int], found: str) -> int:
    """How many elements a block of a row has, a row being what ``x``, a view of the operator's first argument, has over
    its last dimensions ``dims``; 0 where rows are to stay whole: on a CPU, where there are enough of them, where
    they are short, not contiguous, or have no divisor near the number of segments wanted. ``found`` says what a pass
    over a block finds. The decision is recorded.
    """
    device, options, source = call.lowering.device, call.lowering.options, call.node.args[0].val
    last = bool(dims) and sorted(d % x.ndim for d in dims) == list(range(x.ndim - len(dims), x.ndim))
    if not (device.is_gpu and device.multiprocessors and options.split_reductions and options.fuse and last):
        return 0
    whole_rows = tuple(source.shape) == tuple(x.shape) and len(dims) == 1 and source.stride[-1:] == (1,)
    if not x.numel or not (whole_rows or tuple(source.stride) == contiguous_stride(tuple(source.shape))):
        return 0
    length = numel([x.shape[d] for d in dims])
    rows, rule = x.numel // length, SplitRule(device)
    if rows >= rule.enough_outputs or length <= rule.whole_up_to:
        return 0
    whole, split = left_whole(rows, length * x.dtype.itemsize, device)
    wanted = rule.segments(rows, length)
    count = next((k for k in range(wanted, 4 * wanted) if length % k == 0), 1)
    enough = rows * count >= rule.enough_outputs or length // count <= rule.whole_up_to
    if whole <= split or count == 1 or not enough:
        return 0
    alone = "1 row does" if rows == 1 else f"{rows} rows do"
    reason = (
        f"{alone} not fill {device.multiprocessors} multiprocessors: {count} blocks of {length // count} elements "
        f"each, of which one pass finds {found}"
    )
    facts = (("n", rows), ("n_r", length), ("transfers per element, whole", whole), ("split", split),
             ("segments", count), ("segment length", length // count))  # fmt: skip
    call.lowering.decisions.append(Decision(TOPIC, call.node.name, count, reason, (1, count), facts))
    return length // count
