"""Masks by name, and masks out of masks: and, or, not.

Each is a plain ``mask_mod(b, h, q_idx, kv_idx)`` of tensors, so that everything Section 9.10 does with a user's
function is done with these as well: evaluated by blocks for a block mask, traced into a kernel, run on all positions as
the specification. Composition is Python's: the composed function calls its parts.

>>> import torch
>>> rows, columns = torch.arange(4).view(-1, 1), torch.arange(4)
>>> print(and_masks(causal, sliding_window(1))(0, 0, rows, columns).int())
tensor([[1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1]], dtype=torch.int32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import OptionError
from .mask_evaluation import function_name, require_callable

MaskMod = Callable[[Any, Any, Any, Any], torch.Tensor]


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
    """A query sees the keys up to its own position (``q_idx >= kv_idx``)."""
    return q_idx >= kv_idx


def sliding_window(width: int) -> MaskMod:
    """A query sees the keys at a distance of at most ``width``, before and after it (Exercise 37).

    ``and_masks(causal, sliding_window(width))`` looks back only (Beltagy, Peters, Cohan 2020, "Longformer: The
    Long-Document Transformer"). OptionError for a negative width.
    """
    _at_least(0, width, "the width of a sliding window")

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        return (q_idx - kv_idx <= width) & (kv_idx - q_idx <= width)

    return _named(mask, f"sliding_window({width})")


def prefix_lm(length: int) -> MaskMod:
    """The first ``length`` keys are visible to all queries, the others causally (Raffel et al. 2020, "Exploring the
    Limits of Transfer Learning with a Unified Text-to-Text Transformer"). OptionError for a negative length."""
    _at_least(0, length, "the length of a prefix")

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        return (kv_idx < length) | (q_idx >= kv_idx)

    return _named(mask, f"prefix_lm({length})")


def document(ids: torch.Tensor) -> MaskMod:
    """Several documents packed into one sequence: a query sees the keys of its own document.

    ``ids`` has the number of the document at each position: [N] if all batch elements are packed alike, [B, N] if not
    (then the block mask needs ``B``). Any integer dtype. OptionError for other tensors.
    """
    if not isinstance(ids, torch.Tensor) or ids.dim() not in (1, 2) or ids.is_floating_point() or ids.is_complex():
        given = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise OptionError(
            f"document numbers are integers of shape [N] or [B, N], not {given}",
            remedy="give a tensor with the number of the document of each position",
        )
    if ids.dim() == 1:

        def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
            return ids[q_idx] == ids[kv_idx]

    else:

        def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
            return ids[b, q_idx] == ids[b, kv_idx]

    return _named(mask, "document")


def dilated(step: int) -> MaskMod:
    """A query sees every ``step``-th key, counted from its own position in both directions (the strided pattern of
    Child et al. 2019, "Generating Long Sequences with Sparse Transformers"). OptionError for a step below 1.

    With blocks of ``step`` keys or more no block is empty: such a mask saves no computation.
    """
    _at_least(1, step, "the step of a dilated mask")

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        # Not of their difference, which may be negative: C and Python disagree about remainders there.
        return q_idx % step == kv_idx % step

    return _named(mask, f"dilated({step})")


def at_offset(mask_mod: MaskMod, offset: int | torch.Tensor) -> MaskMod:
    """The same mask for queries that begin at position ``offset``: what a decoder with a cache of ``offset`` earlier
    keys asks with. ``offset`` is a number, or an integer tensor of no dimensions whose value may change between calls
    (a block mask holds for the value that it had). OptionError for anything else.
    """
    require_callable(mask_mod)
    if not isinstance(offset, torch.Tensor):
        _at_least(0, offset, "the offset of a mask")

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        return mask_mod(b, h, q_idx + offset, kv_idx)

    place = offset if isinstance(offset, int) else "a tensor"
    return _named(mask, f"at_offset({function_name(mask_mod)}, {place})")


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """Visible where all are; of no masks: everywhere. OptionError for what is no function."""
    _all_callable(mask_mods)

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        visible = torch.ones_like(q_idx, dtype=torch.bool) if not mask_mods else mask_mods[0](b, h, q_idx, kv_idx)
        for mask_mod in mask_mods[1:]:
            visible = visible & mask_mod(b, h, q_idx, kv_idx)
        return visible

    return _named(mask, f"and_masks({', '.join(map(function_name, mask_mods))})")


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """Visible where at least one is; of no masks: nowhere. OptionError for what is no function."""
    _all_callable(mask_mods)

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        visible = torch.zeros_like(q_idx, dtype=torch.bool) if not mask_mods else mask_mods[0](b, h, q_idx, kv_idx)
        for mask_mod in mask_mods[1:]:
            visible = visible | mask_mod(b, h, q_idx, kv_idx)
        return visible

    return _named(mask, f"or_masks({', '.join(map(function_name, mask_mods))})")


def not_mask(mask_mod: MaskMod) -> MaskMod:
    """Visible where the other is not. OptionError for what is no function."""
    require_callable(mask_mod)

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        return ~mask_mod(b, h, q_idx, kv_idx)

    return _named(mask, f"not_mask({function_name(mask_mod)})")


def _all_callable(mask_mods: tuple[MaskMod, ...]) -> None:
    for mask_mod in mask_mods:
        require_callable(mask_mod)


def _named(function: MaskMod, name: str) -> MaskMod:
    function.__name__ = name
    return function


def _at_least(least: int, value: Any, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"{what} is {value!r}", remedy=f"give a whole number of at least {least}")
