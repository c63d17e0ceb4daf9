"""A ``mask_mod`` evaluated: which positions of a rectangle may take part, and which blocks that makes visible.

A ``mask_mod(b, h, q_idx, kv_idx)`` is an ordinary function of tensors. It is called with index tensors that broadcast
(b [B, 1, 1, 1], h [1, H, 1, 1], q_idx [1, 1, N, 1], kv_idx [1, 1, 1, M], all int32), so one call gives a whole
rectangle of positions, and the same function run on all of them at once is the specification. :func:`block_extremes`
goes through the positions in rectangles of bounded size and keeps two bits of each block: whether any position is
visible, and whether all are. That is all a block mask needs to know (Section 9.10).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any

import torch

from ..errors import CaptureError, OptionError, SubscriptError
from ..provenance import SourceLocation

# Positions evaluated at once. On a GPU 16 MiB of bool, and a few times that for the int32 values on the way; on a CPU
# as many as stay in its caches, which is more than twice as fast.
MOST_POSITIONS, MOST_POSITIONS_CPU = 1 << 24, 1 << 20

# What PyTorch says when a tensor of several elements is asked for its one value.
_ASKED_FOR_A_NUMBER = ("Boolean value of Tensor", "cannot be converted to Scalar", "converted to Python scalars")

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OWN = os.path.abspath(__file__)


@dataclass(frozen=True)
class Span:
    """Whole numbers from ``start`` to ``stop - 1``."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Rectangle:
    """Positions: a range of batch elements, of heads, of queries and of keys."""

    batch: Span
    heads: Span
    queries: Span
    keys: Span

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.batch), len(self.heads), len(self.queries), len(self.keys)

    def indices(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """b, h, q_idx and kv_idx as int32 tensors that broadcast to :attr:`shape`."""
        spans = (self.batch, self.heads, self.queries, self.keys)
        shapes = ((-1, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, -1))
        return tuple(
            torch.arange(span.start, span.stop, dtype=torch.int32, device=device).view(shape)
            for span, shape in zip(spans, shapes, strict=True)
        )


def function_name(function: Callable) -> str:
    """What a message calls a user's function: its own name, or that of what ``functools.partial`` wraps."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def _code_of(function: Callable) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def function_location(function: Callable) -> SourceLocation | None:
    """Where a function is defined, or None for one that is not written in Python."""
    import linecache

    code = _code_of(function)
    if code is None:
        return None
    line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return SourceLocation(code.co_filename, code.co_firstlineno, line, code.co_name)


def _raised_at(error: BaseException, function: Callable) -> SourceLocation | None:
    """The line of the user's function in which an exception arose: the innermost frame that is not PyTorch's."""
    import linecache

    found: TracebackType | None = None
    at = error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if not file.startswith(_TORCH) and os.path.abspath(file) != _OWN:
            found = at
        at = at.tb_next
    if found is None:
        return function_location(function)
    code = found.tb_frame.f_code
    line = linecache.getline(code.co_filename, found.tb_lineno).strip()
    return SourceLocation(code.co_filename, found.tb_lineno, line, code.co_name)


def evaluate_indices(mask_mod: Callable, indices: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """``mask_mod`` of four index tensors: a bool tensor that broadcasts to their common shape.

    Raises CaptureError if it returns anything else, or decides with a Python ``if`` on a tensor; SubscriptError if it
    reads beyond a tensor. Other exceptions of the user's function pass through.
    """
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    name = function_name(mask_mod)
    try:
        with torch.no_grad():
            visible = mask_mod(*indices)
    except IndexError as error:
        raise SubscriptError(
            f"mask_mod {name!r} reads beyond a tensor: {error}",
            where=_raised_at(error, mask_mod),
            remedy=f"q_idx goes from {_range(indices[2])} and kv_idx from {_range(indices[3])}, b from "
            f"{_range(indices[0])} and h from {_range(indices[1])}: make the tensor longer, or limit the subscript",
        ) from error
    except (RuntimeError, ValueError) as error:
        if not any(words in str(error) for words in _ASKED_FOR_A_NUMBER):
            raise
        raise CaptureError(
            f"mask_mod {name!r} turns a tensor into a Python value, but it is called with tensors of many positions",
            where=_raised_at(error, mask_mod),
            remedy="write conditions with &, | and ~ and choices with torch.where, instead of and, or, not and if",
        ) from error
    where = function_location(mask_mod)
    if not isinstance(visible, torch.Tensor):
        raise CaptureError(
            f"mask_mod {name!r} returns a {type(visible).__name__}, not a tensor of bool",
            where=where,
            remedy="return a comparison of its arguments, such as q_idx >= kv_idx; a constant is "
            "torch.ones_like(q_idx, dtype=torch.bool)",
        )
    if visible.dtype != torch.bool:
        raise CaptureError(
            f"mask_mod {name!r} returns {str(visible.dtype).removeprefix('torch.')}, not bool: a mask says whether a "
            "position takes part",
            where=where,
            remedy="return a comparison (value > 0), or change scores with a score_mod instead",
        )
    if not _broadcasts(tuple(visible.shape), tuple(shape)):
        raise CaptureError(
            f"mask_mod {name!r} returns shape {tuple(visible.shape)}, which does not broadcast to {tuple(shape)}: "
            "batch, heads, queries, keys",
            where=where,
            remedy="combine the arguments element by element, and index captured tensors with them: t[q_idx, kv_idx]",
        )
    if visible.device.type != indices[0].device.type:
        raise CaptureError(
            f"mask_mod {name!r} returns a tensor on {visible.device}, but the mask is made on {indices[0].device}",
            where=where,
            remedy="move the tensors it captures there, or give create_block_mask their device",
        )
    return visible


def _range(index: torch.Tensor) -> str:
    flat = index.flatten()
    return f"{int(flat[0])} to {int(flat[-1])}"


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    if len(shape) > len(to):
        return False
    return all(have in (1, want) for have, want in zip(reversed(shape), reversed(to), strict=False))


def evaluate(mask_mod: Callable, rectangle: Rectangle, device: torch.device) -> torch.Tensor:
    """Which positions of a rectangle take part: bool of the rectangle's shape (a view that repeats where the mask does
    not vary). O(positions). Raises what :func:`evaluate_indices` raises."""
    return evaluate_indices(mask_mod, rectangle.indices(device)).expand(rectangle.shape)


def reads(mask_mod: Callable, queries: int, keys: int, device: torch.device) -> tuple[bool, bool]:
    """Whether the mask depends on the batch element and on the head, found by asking it: two batch elements and two
    heads, all of number 0, on two queries and keys. What depends on b has an extent of 2 along it.

    All four tensors have two elements (where there is only one position, twice that one), so that a function that
    decides in Python is found out here, and not when the mask is made for a longer sequence.

    Raises what :func:`evaluate_indices` raises. There must be at least one query and one key.
    """
    spans = Rectangle(Span(0, 1), Span(0, 1), Span(0, min(queries, 2)), Span(0, min(keys, 2)))
    b, h, q_idx, kv_idx = spans.indices(device)
    twice = (b.expand(2, 1, 1, 1), h.expand(1, 2, 1, 1), q_idx.expand(1, 1, 2, 1), kv_idx.expand(1, 1, 1, 2))
    visible = evaluate_indices(mask_mod, twice)
    extent = (1,) * (4 - visible.dim()) + tuple(visible.shape)
    return extent[0] == 2, extent[1] == 2


def block_extremes(
    mask_mod: Callable,
    sizes: tuple[int, int, int, int],
    block: tuple[int, int],
    device: torch.device,
    most: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each block of ``block`` = (queries, keys): whether any of its positions is visible, and whether all are.

    ``sizes`` are batch elements, heads, queries and keys, none of them 0. Both results are bool [B, H, rows, columns];
    the last row and column of blocks may be ragged, and only positions that exist count. O(B H N M) time; no more than
    ``most`` positions are held at once (by default :data:`MOST_POSITIONS`, fewer on a CPU).
    """
    if most is None:
        most = MOST_POSITIONS_CPU if device.type == "cpu" else MOST_POSITIONS
    batch, heads, queries, keys = sizes
    grid = (batch, heads, -(-queries // block[0]), -(-keys // block[1]))
    seen = torch.zeros(grid, dtype=torch.bool, device=device)
    whole = torch.ones(grid, dtype=torch.bool, device=device)
    for part in rectangles(sizes, block, most):
        visible = evaluate(mask_mod, part, device)
        any_, all_ = _extremes(visible, (min(block[0], len(part.queries)), min(block[1], len(part.keys))))
        first = (part.queries.start // block[0], part.keys.start // block[1])
        at = (
            slice(part.batch.start, part.batch.stop), slice(part.heads.start, part.heads.stop),
            slice(first[0], first[0] + any_.shape[2]), slice(first[1], first[1] + any_.shape[3]),
        )  # fmt: skip
        seen[at] = seen[at] | any_
        whole[at] = whole[at] & all_
    return seen, whole


def _extremes(visible: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Any and all of each block of a bool tensor [B, H, N, M]."""
    bits = visible.view(torch.uint8)  # maxima and minima of bytes are vectorised, "any" and "all" are not
    missing = [-bits.shape[2] % block[0], -bits.shape[3] % block[1]]

    def reduced(padding: int, reduce: Callable[..., torch.Tensor]) -> torch.Tensor:
        padded = bits
        if any(missing):
            padded = torch.nn.functional.pad(bits, (0, missing[1], 0, missing[0]), value=padding)
        # Rows of a block first: they are whole cache lines, and what is left is small.
        tiles = padded.unflatten(3, (-1, block[1])).unflatten(2, (-1, block[0]))
        return reduce(reduce(tiles, 3), 4).bool()

    return reduced(0, torch.amax), reduced(1, torch.amin)


def rectangles(sizes: tuple[int, int, int, int], block: tuple[int, int], most: int) -> Iterator[Rectangle]:
    """Rectangles of at most ``most`` positions that cover everything once and never contain parts of several blocks
    along an axis: whole blocks, or a part of one.

    A rectangle is widened along the keys first, then queries, heads and batch, so that rows stay long.
    """
    batch, heads, queries, keys = sizes
    rows, columns = min(block[0], queries), min(block[1], keys)
    if rows * columns > most:
        columns = max(min(columns, most), 1)
        rows = max(min(rows, most // columns), 1)
        steps = (1, 1, rows, columns)
    else:
        wide = _multiple(block[1], keys, most // rows)
        high = _multiple(block[0], queries, most // wide) if wide >= keys else rows
        tall = max(min(heads, most // (high * wide)), 1) if high >= queries else 1
        deep = max(min(batch, most // (high * wide * tall)), 1) if tall >= heads else 1
        steps = (deep, tall, high, wide)

    def spans(size: int, step: int, inside: int | None = None) -> Iterator[Span]:
        """Pieces of ``step``; with ``inside`` none goes beyond a multiple of it."""
        limit = inside if inside is not None and step < inside else size
        for outer in range(0, size, limit):
            end = min(outer + limit, size)
            yield from (Span(start, min(start + step, end)) for start in range(outer, end, step))

    for b in spans(batch, steps[0]):
        for h in spans(heads, steps[1]):
            for q in spans(queries, steps[2], block[0]):
                for k in spans(keys, steps[3], block[1]):
                    yield Rectangle(b, h, q, k)


def _multiple(block: int, size: int, most: int) -> int:
    """The largest multiple of a block within ``most``, or the whole size if that fits."""
    return size if size <= most else max(most // block, 1) * block


def require_callable(mask_mod: Any, what: str = "mask_mod") -> None:
    """OptionError for what cannot be called, CaptureError for what does not take four arguments."""
    if not callable(mask_mod):
        raise OptionError(
            f"{what} is a {type(mask_mod).__name__}, not a function",
            remedy="give a function of (b, h, q_idx, kv_idx) that returns a tensor of bool",
        )
    with contextlib.suppress(ValueError):  # a builtin without a signature: calling it will tell
        try:
            inspect.signature(mask_mod).bind(*range(4))
        except TypeError as error:
            raise CaptureError(
                f"{what} {function_name(mask_mod)!r} does not take (b, h, q_idx, kv_idx): {error}",
                where=function_location(mask_mod),
                remedy=f"def {what}(b, h, q_idx, kv_idx): ...",
            ) from None
