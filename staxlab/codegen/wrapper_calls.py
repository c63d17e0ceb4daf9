"""What a generated wrapper calls besides kernels and PyTorch's operators (Section 8.5).

They stand apart from what generates wrappers, so that a region restored from the cache loads none of that.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import CodegenError


def in_layout(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """``tensor`` itself if it has the strides kernels were compiled for, else a copy that has them.

    Raises CodegenError if the shape differs: the operator's result depends on more than the specialization key.
    """
    if tensor.stride() == stride and tensor.shape == shape:
        return tensor
    if tensor.shape != shape:
        raise CodegenError(f"an operator returned shape {tuple(tensor.shape)} where {shape} was recorded")
    copy = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def written(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, into which a kernel has written what the program copies into it. Its version counter rises as if it
    had been copied, so that autograd notices."""
    torch.autograd.graph.increment_version(tensor)
    return tensor


def _quickest(name: str) -> Any:
    """An allocation of PyTorch's own generated code, None if this PyTorch has none of that name."""
    return getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), name, None)


def empty_on_cpu() -> Any:
    """``empty(shape, stride, dtype)`` on the CPU: the quickest allocation PyTorch offers."""
    return _quickest("_empty_strided_cpu") or _empty_strided


def _empty_strided(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype)


def empty_on_cuda(device: torch.device) -> Any:
    """``empty(shape, stride, dtype)`` on a CUDA device, likewise. PyTorch's quickest allocates on the current device,
    which nearly always is that one."""
    fast, current = _quickest("_empty_strided_cuda"), getattr(torch._C, "_cuda_getDevice", None)

    def empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if fast is not None and current() == device.index:
            return fast(shape, stride, dtype)
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    empty.allocates_on = device  # type: ignore[attr-defined]  # so that a plan can name it
    return empty


#: Operators of the dispatcher for which PyTorch has a function that reads its arguments faster.
DIRECT: dict[Any, Any] = {
    getattr(torch.ops.aten, name).default: getattr(torch, name)
    for name in (
        "mm addmm bmm baddbmm convolution _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention"
    ).split()
    if hasattr(torch, name)
}

#: Those whose results always lie in memory row by row.
CONTIGUOUS = frozenset(getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm"))
