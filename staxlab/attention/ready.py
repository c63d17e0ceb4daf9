"""Calls of an attention that has been called before, made ready once (Sections 2.4 and 9.10).

On a GPU the kernel of an attention over a thousand queries takes some tens of microseconds, and Python may not take
longer than that to launch it. What a call does before its launch is a function of few things: the metadata of query,
key and value, the identities of ``score_mod`` and of the block mask, the numbers and options, and what is in force
around the call (autocast, gradient mode, inference mode). So its outcome is kept under these, as a guarded version of a
compiled program is, and is valid as long as what the two functions read is untouched (:mod:`.reads`). An outcome is
only kept of a call that was accepted: whatever is refused is refused again, with the same words.

Where nobody watches and the tensors are ordinary ones, the kernel is called past the dispatcher, which would do no more
than that, or record the gradient, which is asked for then. While a program is recorded, under function transforms and
modes, nothing of this is used.
"""

from __future__ import annotations

import operator as operators
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..specialize.ambient import must_run_eagerly, read_ambient
from . import reads
from .block_mask import BlockMask
from .operator import CACHES, BlockLists, attention, is_differentiated, kernel_of, run, undispatched

LARGEST = 512
_ready: dict[tuple, Ready] = {}  # the oldest goes first; cleared with the operator's caches
CACHES.append(_ready)
_ORDINARY = (torch.Tensor, torch.nn.Parameter)
_keys = torch._C._dispatch_keys
_lists: Callable[[BlockMask], tuple] = operators.attrgetter(*BlockLists._fields)


class Ready:
    """A call that was accepted: the ``name`` of its specification, the tensors that its functions ``captured``, the
    dtype that autocast ``casts`` its tensors to (None: none), and the ``states`` of what ``score_mod`` and ``mask_mod``
    read when they were traced, None for one that there is not."""

    __slots__ = ("block_mask", "captured", "casts", "kernel", "learnable", "name", "plain", "shapes", "states")

    def __init__(
        self, name: str, captured: tuple, learnable: int, casts: torch.dtype | None, block_mask: BlockMask | None,
        states: tuple, plain: bool,
    ):  # fmt: skip
        self.name, self.captured, self.learnable, self.casts, self.states = name, captured, learnable, casts, states
        self.block_mask = None if block_mask is None else weakref.ref(block_mask)
        self.shapes = None if block_mask is None else _shapes(block_mask)
        self.plain = plain
        self.kernel: Any = None

    def fits(self, score_mod: Any, block_mask: Any) -> bool:
        """Whether the functions still read what they read, and the block mask is the very same."""
        score, mask = self.states
        if score is not None and reads.state_of(score_mod) is not score:
            return False
        if self.block_mask is None:
            return True
        if self.block_mask() is not block_mask or _shapes(block_mask) != self.shapes:
            return False
        return reads.state_of(block_mask.mask_mod) is mask

    def __call__(self, query: Any, key: Any, value: Any, block_mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The result and the logarithms, of tensors in the dtype that they are computed in."""
        captured = [part.tensor for part in self.captured]
        blocks = () if self.block_mask is None else _lists(block_mask)
        if not self.plain:
            return attention(query, key, value, list(blocks), captured, self.name)
        if is_differentiated((query, key, value, *captured[: self.learnable])):
            return undispatched(self.name, query, key, value, blocks, captured)
        found = self.kernel
        if found is None:
            found = self.kernel = kernel_of(self.name, query, key, value)
        return run(*found, query, key, value, blocks, captured)


def place_of(
    query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any, enable_gqa: Any,
    options: Any,
) -> tuple | None:  # fmt: skip
    """What the outcome of a call depends on besides what its functions read; None where none may be kept: something
    wants to see every operation, or an argument is not of the kind that can be compared."""
    if type(query) not in _ORDINARY or type(key) not in _ORDINARY or type(value) not in _ORDINARY:
        return None
    if type(enable_gqa) is not bool or not (scale is None or (type(scale) is float and scale)) or must_run_eagerly():
        return None
    given: tuple = ()
    if options is not None:
        if type(options) is not dict or not all(type(what) in (str, int, bool) for what in options.values()):
            return None
        given = tuple(sorted((str(name), type(what).__name__, what) for name, what in options.items()))
    try:
        return (
            id(score_mod), id(block_mask), scale, enable_gqa, given, read_ambient(), torch.get_num_threads(),
            query.shape, query.stride(), query.dtype, query.device, _keys(query).raw_repr(),
            key.shape, key.stride(), key.dtype, key.device, _keys(key).raw_repr(),
            value.shape, value.stride(), value.dtype, value.device, _keys(value).raw_repr(),
        )  # fmt: skip
    except RuntimeError:  # a layout without strides, which is refused elsewhere
        return None


_CAST = (torch.float32, torch.float16, torch.bfloat16)


def cast(tensors: tuple[torch.Tensor, ...], dtype: torch.dtype | None) -> tuple[torch.Tensor, ...]:
    """The tensors as autocast has them (None: as they are)."""
    if dtype is None:
        return tensors
    return tuple(tensor.to(dtype) if tensor.dtype in _CAST else tensor for tensor in tensors)


def find(place: tuple, score_mod: Any, block_mask: Any) -> Ready | None:
    """The call that was made ready at a place, if it still stands."""
    ready = _ready.get(place)
    return ready if ready is not None and ready.fits(score_mod, block_mask) else None


def states_of(score_mod: Any, block_mask: Any) -> tuple | None:
    """What stands for what the two functions read now; None where that cannot be told. Asked for before they are
    traced, so that what tracing touches is noticed at the next call."""
    functions = (score_mod, block_mask.mask_mod if isinstance(block_mask, BlockMask) else None)
    states = tuple(None if function is None else reads.described_state(function) for function in functions)
    known = all((function is None) == (state is None) for function, state in zip(functions, states, strict=True))
    return states if known else None


def keep(place: tuple, ready: Ready) -> None:
    """Find this call at its place from now on."""
    while len(_ready) >= LARGEST:
        _ready.pop(next(iter(_ready)), None)
    _ready[place] = ready


def _shapes(block_mask: BlockMask) -> tuple:
    return block_mask.kv_num_blocks.shape, block_mask.kv_indices.shape, block_mask.kv_num_blocks.device


__all__ = ["Ready", "cast", "find", "keep", "place_of", "states_of"]
