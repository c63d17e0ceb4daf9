"""Attention as a programmable template (Section 9.10): what a variant is, and how it becomes a kernel.

:mod:`.problem` is what a kernel is generated for, :mod:`.modification` a traced ``score_mod`` or ``mask_mod``,
:mod:`.block_mask` which blocks of scores are visited, :mod:`.reference` the specification on an N x M matrix,
:mod:`.operator` the operator that regions record, and :mod:`.omni` the function that users call.
"""

from __future__ import annotations

_PUBLIC = {
    "BlockMask": ".block_mask",
    "and_masks": ".masks",
    "at_offset": ".masks",
    "causal": ".masks",
    "create_block_mask": ".block_mask",
    "dilated": ".masks",
    "document": ".masks",
    "not_mask": ".masks",
    "omni_attention": ".omni",
    "or_masks": ".masks",
    "prefix_lm": ".masks",
    "reference_attention": ".reference",
    "sliding_window": ".masks",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str):
    # Generators of kernels import records from here: the operator, and the stages it needs, load when asked for.
    import importlib

    from ..specialize.ambient import unrecorded

    if name in _PUBLIC:
        return getattr(unrecorded(lambda: importlib.import_module(_PUBLIC[name], __name__)), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
