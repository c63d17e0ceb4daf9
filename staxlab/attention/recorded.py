"""The attention operator for attention that was found written out in a graph (Section 9.10).

The rewrite (:mod:`staxlab.transform.attention_rewrite`) knows graphs and no kernels; it hands over an expression of
the score. Here the expression becomes a Python function, the function a traced modification, and both, with a block
mask where a condition on the position hides whole blocks, a registered specification: what ``omni_attention`` would
have made of the same variant.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..capture.graph import TensorMeta
from ..errors import StaxError
from ..options import device_spec, host_device_spec
from ..provenance import SourceLocation
from ..transform.attention_expressions import Coordinate, Score, function_of, parts_of
from ..transform.attention_plans import GeneralPlan
from ..transform.attention_rewrite import GeneralCall
from .backends import choose
from .block_mask import create_block_mask
from .modification import modification
from .operator import Specification, attention, register
from .problem import BlockGeometry

#: Lists of blocks are made where they leave out at least this percentage of the scores.
WORTH_LISTS = 20.0


def attention_operator(
    plan: GeneralPlan,
    operands: Sequence[TensorMeta],
    captured: Sequence[TensorMeta],
    where: SourceLocation | None = None,
) -> GeneralCall | str:
    """What to call the operator with, or why it would gain nothing.

    ``operands`` are the metadata of query [b, h, q, d], key [b, key heads, kv, d] and value, ``captured`` that of the
    tensors that ``plan`` reads, with the axes (of b, h, q, kv) along which they vary. ``where`` is the user's line,
    for the text of the kernels. Of captured tensors tracing reads shapes, strides and dtypes, so empty ones stand in
    for them.
    """
    try:
        return _operator(plan, operands, captured, where)
    except (StaxError, RuntimeError, TypeError, AttributeError) as error:
        return f"no kernel can hold it: {str(error).splitlines()[0]}"


def _operator(
    plan: GeneralPlan, operands: Sequence[TensorMeta], captured: Sequence[TensorMeta], where: SourceLocation | None
) -> GeneralCall | str:
    query, key, value = operands
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    tensors = [_stand_in(meta) for meta in captured]
    score = mask = None
    geometry, blocks = None, ()
    expression = plan.score
    if plan.visible is not None:
        made = function_of(plan.visible, "visible", where=where, score=False)
        read = {part.axis for part in parts_of(plan.visible) if isinstance(part, Coordinate)}
        varying = [size if axis in read else None for axis, size in enumerate(sizes[:2])]
        found = create_block_mask(made, *varying, *sizes[2:], device=query.device)
        if found.sparsity() >= WORTH_LISTS:
            geometry = BlockGeometry(*found.block_size, *(extent > 1 for extent in found.shape[:2]))
            blocks = tuple(found.lists().values())
            mask = modification(made, "mask", sizes, dtype, query.device)
        else:
            expression = plan.whole
    if not isinstance(expression, Score):
        function = function_of(expression, "modified", tensors, where)
        score = modification(function, "score", sizes, dtype, query.device)
    specification = Specification(score, mask, plan.scale, geometry)
    device = device_spec(str(query.device)) if query.device.type == "cuda" else host_device_spec()
    learnable = [part.requires_grad for part in specification.captured]
    for wanted in (None, learnable) if plan.guard.trains else (None,):
        decision = choose(specification.problem(query, key, value, device, wanted))
        if decision.choice == "reference":
            return f"no kernel computes it here: {decision.reason}"
    order = tuple(next(n for n, x in enumerate(tensors) if x is part.tensor) for part in specification.captured)
    return GeneralCall(attention, register(specification), blocks, order)


def _stand_in(meta: TensorMeta) -> torch.Tensor:
    tensor = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
    return tensor.requires_grad_(meta.requires_grad and meta.dtype.is_floating_point)


__all__ = ["attention_operator"]
