"""``omni_attention``: attention whose variant is two functions of one score (Section 9.10, Listing 9.7).

``score_mod(score, b, h, q_idx, kv_idx)`` says what becomes of a score before the softmax, ``mask_mod`` inside a block
mask which scores take part. Both are traced and become lines of the kernel. The same call works everywhere: by itself
it runs at once, and inside a function given to :func:`staxlab.compile` it is recorded as one operator.

Nothing here computes. Arguments are checked, each refusal in one sentence that names the argument; the functions become
modifications; and :data:`~staxlab.attention.operator.attention` is called. All of it happens once: a call whose like
was accepted before finds it :mod:`.ready`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import OptionError, SubscriptError
from ..loops.layout import is_injective
from ..specialize.ambient import are_ordinary, unrecorded
from .backends import check_options
from .block_mask import BlockMask
from .modification import Captured, modification
from .operator import Specification, register
from .problem import DTYPES, BlockGeometry
from .ready import Ready, cast, find, keep, place_of, states_of


def omni_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``softmax(score_mod(scale * query @ key^T))`` over the visible keys, ``@ value``; no N x M matrix is formed.

    Query [B, Hq, N, D], key [B, Hkv, M, D] and value [B, Hkv, M, Dv] are of one dtype, float32, float16 or bfloat16
    (on CPUs also float64), and on one device. The result [B, Hq, N, Dv] has the query's dtype; with ``return_lse`` it
    comes with the natural logarithm of each row's sum of exponentials, [B, Hq, N] in float32 (float64 for float64). A
    query that sees no key gets 0, and minus infinity as its logarithm, and gives no gradient.

    score_mod      ``score_mod(score, b, h, q_idx, kv_idx)`` returns the modified score. It is traced once, with tensors
                   that broadcast to [B, Hq, N, M]; so the same function applied to a matrix of scores and four index
                   tensors is what it means (:mod:`.reference`). Tensors it captures are read where they are needed, and
                   get gradients if they require them
    block_mask     which scores take part, from :func:`~staxlab.attention.block_mask.create_block_mask`
    scale          what scores are multiplied by; by default 1/sqrt(D)
    enable_gqa     allows fewer key heads than query heads: query head h uses key head ``h // (Hq // Hkv)``
    kernel_options ``BACKEND``: "triton", "decode" (few queries: the keys are split among program instances), "cpp" or
                   "reference"; one that is not available is an error. ``BLOCK_M``, ``BLOCK_N``, ``num_warps``,
                   ``num_stages``, ``SPLITS``: numbers that the templates take. ``INTERPRET``: on a CPU, run the
                   Triton kernels in Triton's interpreter, slowly, to see what they do

    Products are accumulated, and scores modified, in float32 (float64 for float64); probabilities are rounded to the
    dtype of a half-precision value before the second product. Differentiable once, in reverse mode, in query, key,
    value, captured tensors and the logarithm; StaxError beyond that.

    The backward pass makes the probabilities again as ``exp(score - LSE)``, and so with a relative error of up to
    ``|LSE| * 2^-24``. A row all of whose scores are a large negative number has the right output, but no right
    gradient: hide scores with minus infinity or a block mask.

    O(B Hq N M (D + Dv)) operations less what the block mask leaves out, and O(N + M) memory. Raises OptionError for
    arguments that do not fit, CaptureError for a function that is none of one score, and, without a block mask,
    SubscriptError where ``score_mod`` reads beyond a captured tensor at a subscript that is no data. Other reads out of
    range are of the nearest element.
    """
    place = place_of(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)
    ready = None if place is None else find(place, score_mod, block_mask)
    if ready is None:
        ready, given = _made_ready(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options, place)
    else:
        given = cast((query, key, value), ready.casts)
    output, lse = ready(*given, block_mask)
    return (output, lse) if return_lse else output


def _made_ready(
    query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any, enable_gqa: Any,
    kernel_options: Any, place: tuple | None,
) -> tuple[Ready, tuple[torch.Tensor, ...]]:  # fmt: skip
    """The call with everything checked, traced and registered, kept at its ``place`` if it has one; and query, key and
    value in the dtype that they are computed in."""
    states = None if place is None else states_of(score_mod, block_mask)
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
    casts = _autocast_dtype(query)
    query, key, value = given = cast((query, key, value), casts)
    _check_sizes(query, key, value, enable_gqa)
    options = check_options(kernel_options)
    geometry, mask_mod = None, None
    if block_mask is not None:
        geometry, mask_mod = _visited(block_mask, query, key)
    modifications = []
    for kind, function in (("score", score_mod), ("mask", mask_mod)):
        modifications.append(None if function is None else _traced(function, kind, query, key))
    score, mask = modifications
    if score is not None and mask is None and score.beyond:  # a mask may hide the scores that would read there
        what, where = score.beyond[0]
        raise SubscriptError(
            f"score_mod {score.name!r} reads beyond a tensor: {what}",
            where=where,
            remedy="make the tensor longer, or limit the subscript: table[q_idx.clamp(max=len(table) - 1)]",
        )
    found = Specification(score, mask, _checked_scale(scale), geometry, options)
    for part in found.captured:
        _check_device(part, query.device)
    learnable = len(score.captured) if score is not None else 0
    plain = place is not None and are_ordinary((*given, *(part.tensor for part in found.captured)))
    ready = Ready(register(found), found.captured, learnable, casts, block_mask, states or (None, None), plain)
    if states is not None:
        keep(place, ready)
    return ready, given


# -- checks -----------------------------------------------------------------------------------------------------------

_SHAPES = {
    "query": "[batch, query heads, queries, head size]",
    "key": "[batch, key heads, keys, head size]",
    "value": "[batch, key heads, keys, value size]",
}


def _check_tensor(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise OptionError(f"{name} must be a tensor {_SHAPES[name]}, not {type(tensor).__name__}")
    if tensor.is_nested:
        raise OptionError(
            f"{name} is a nested tensor, whose rows have no one length",
            remedy="pad it (torch.nested.to_padded_tensor), and hide what was added with a block mask",
        )
    if tensor.dim() != 4:
        raise OptionError(
            f"{name} must have the four dimensions {_SHAPES[name]}, and has shape {list(tensor.shape)}",
            remedy="add the missing ones with unsqueeze(0)" if tensor.dim() < 4 else "flatten the others into batch",
        )
    if tensor.layout is not torch.strided:
        raise OptionError(f"{name} has layout {tensor.layout}", remedy="pass a dense tensor: to_dense()")


def _autocast_dtype(query: torch.Tensor) -> torch.dtype | None:
    """What autocast gives to scaled_dot_product_attention, None where it is off."""
    device = query.device.type
    enabled = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if enabled else None


def _check_sizes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: Any) -> None:
    if len({query.dtype, key.dtype, value.dtype}) > 1:
        raise OptionError(
            f"query, key and value must be of one dtype, and are {query.dtype}, {key.dtype} and {value.dtype}",
            remedy="convert them to one: key.to(query.dtype)",
        )
    if query.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise OptionError(f"query, key and value are {query.dtype}", remedy=f"use one of {names}")
    if len({query.device, key.device, value.device}) > 1:
        raise OptionError(
            f"query, key and value must be on one device, and are on {query.device}, {key.device} and {value.device}",
            remedy="move them with .to(query.device)",
        )
    (batch, heads, _, head_size), (key_batch, key_heads, _, key_size) = query.shape, key.shape
    if value.shape[:3] != key.shape[:3]:
        raise OptionError(
            f"value must have the batch, heads and keys of key, {list(key.shape[:3])}, and has {list(value.shape[:3])}"
        )
    if batch != key_batch:
        raise OptionError(
            f"query has batch size {batch}, key and value have {key_batch}",
            remedy=f"repeat them without copying: key.expand({batch}, -1, -1, -1)" if key_batch == 1 else None,
        )
    if head_size != key_size:
        raise OptionError(f"query has head size {head_size}, key has {key_size}; their product needs one size")
    if head_size == 0:
        raise OptionError("query and key have head size 0: there is nothing to multiply")
    if not isinstance(enable_gqa, bool):
        raise OptionError(f"enable_gqa must be True or False, not {enable_gqa!r}")
    divides = key_heads and heads % key_heads == 0
    if heads != key_heads and not (enable_gqa and divides):
        remedy = f"enable_gqa=True shares each key head among {heads // key_heads} query heads" if divides else None
        what = f"query has {heads} heads, key and value have {key_heads}"
        raise OptionError(what if divides else f"{what}, which does not divide them", remedy=remedy)


def _checked_scale(scale: Any) -> float | None:
    if scale is None:
        return None
    if isinstance(scale, torch.Tensor):
        raise OptionError(
            "scale must be a number, not a tensor",
            remedy="multiply in score_mod: lambda score, b, h, q_idx, kv_idx: score * scale, with scale=1.0 here",
        )
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real) or not math.isfinite(scale):
        raise OptionError(f"scale must be a finite number, not {scale!r}")
    return float(scale)


def _visited(block_mask: Any, query: torch.Tensor, key: torch.Tensor) -> tuple[BlockGeometry, Callable]:
    """The geometry and the function of a block mask that fits."""
    if not isinstance(block_mask, BlockMask):
        remedy = None
        if callable(block_mask):
            sizes = f"B=None, H=None, Q_LEN={query.shape[2]}, KV_LEN={key.shape[2]}"
            remedy = f"make one of the function: create_block_mask(mask_mod, {sizes})"
        raise OptionError(f"block_mask must be a BlockMask, not {type(block_mask).__name__}", remedy=remedy)
    block_mask.check(query, key)
    batch, heads = block_mask.shape[:2]
    alike = heads > 1 and not block_mask.reads_head
    geometry = BlockGeometry(*block_mask.block_size, batch > 1, heads > 1, alike)
    return geometry, block_mask.mask_mod


def _check_device(part: Captured, device: torch.device) -> None:
    """A captured tensor has to be where kernels can read it."""
    if part.device != str(device):
        raise OptionError(
            f"{part.path}, which a modification captured, is on {part.device}, and query on {device}",
            remedy="move it once, outside the function",
        )


# -- modifications ----------------------------------------------------------------------------------------------------


def _traced(function: Callable, kind: str, query: torch.Tensor, key: torch.Tensor) -> Any:
    """The modification that a function is. While a region is recorded, on a thread of its own: what a modification does
    is no operation of the region, and the recorder watches this thread."""
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    arguments = (function, kind, sizes, dtype, query.device)
    found = unrecorded(lambda: modification(*arguments))
    # Whether what a region has computed requires grad, only who records the region knows: asked here, on its thread.
    if any(part.dtype.is_floating_point and _overlaps(part) and part.tensor.requires_grad for part in found.captured):
        return unrecorded(lambda: modification(*arguments, spread_out=True))
    return found


def _overlaps(part: Captured) -> bool:
    """Whether several elements of a captured tensor are one place in memory."""
    return not is_injective(part.shape, part.strides)


__all__ = ["omni_attention"]
