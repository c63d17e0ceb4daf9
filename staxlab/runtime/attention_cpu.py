"""Attention kernels in C++, compiled and called (Sections 9.10 and 11.1).

:func:`build_forward` gives back a callable for a problem: it allocates the result and the kernel's workspace and hands
pointers to the compiled function. Libraries come from the same cache as those of all kernels.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..attention.problem import AttentionProblem
from ..codegen.cpp.attention import AttentionKernel, forward_source
from ..codegen.cpp.attention_backward import backward_source
from ..errors import OptionError, OutOfMemoryError
from ..provenance import Line
from . import build, toolchain


class _Launcher:
    """A compiled kernel of attention with its text."""

    def __init__(self, problem: AttentionProblem, made: AttentionKernel | None):
        self.problem = problem
        self.made = made

    @functools.cached_property
    def entry(self) -> Any:
        """The compiled function. BuildError without a compiler."""
        entry = build.load_kernel(self.made.kernel, toolchain.find()).launch
        entry.restype = ctypes.c_longlong
        return entry

    @property
    def source(self) -> str:
        """The kernel's text; where there is nothing to compute, a comment that says so."""
        return self.made.source if self.made else f"// nothing to compute: {self.problem}\n"

    @property
    def listing(self) -> tuple[Line, ...]:
        """Every line of the text, with the nodes of the modifications' graphs that it stems from."""
        return self.made.listing if self.made else ()

    def traffic(self) -> dict[str, int]:
        """Bytes that are moved, as :meth:`.AttentionKernel.traffic` has them."""
        return self.made.traffic() if self.made else {}

    def pointers(self, tensors: Sequence[torch.Tensor]) -> None:
        """Call the kernel. Raises OutOfMemoryError if there was no memory for its threads."""
        if self.entry(*(tensor.data_ptr() for tensor in tensors)):
            raise OutOfMemoryError(
                f"no memory for the tiles of {self.problem}", remedy="free memory, or use fewer threads"
            )

    def workspace(self) -> list[torch.Tensor]:
        dtype = self.problem.accumulator
        return [torch.empty(max(count, 1), dtype=dtype) for _, count in self.made.workspace]

    def lists(self, block_mask: Any) -> list[torch.Tensor]:
        """The lists of a block mask that the kernel reads. OptionError without a mask where there should be one."""
        if not self.made.lists:
            return []
        if block_mask is None:
            raise OptionError("this kernel walks along a block mask", remedy="pass the block mask of the problem")
        return [getattr(block_mask, name).contiguous() for name in self.made.lists]


class Forward(_Launcher):
    """``forward(query, key, value, block_mask, captured) -> (out, lse)``, as the problem describes its arguments."""

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block_mask: Any = None,
        captured: Sequence[torch.Tensor] = (),
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        problem = self.problem
        sizes = (problem.batch, problem.query_heads, problem.queries)
        out = torch.empty_strided((*sizes, problem.value_size), problem.output_strides, dtype=problem.dtype)
        lse = torch.empty(sizes, dtype=problem.accumulator)
        if self.made is None:
            return out.zero_(), lse.fill_(float("-inf"))
        workspace = self.workspace()
        self.pointers([query, key, value, *self.lists(block_mask), *captured, *workspace, out, lse])
        return out, lse


@functools.lru_cache(maxsize=256)
def _forward(problem: AttentionProblem, configuration: tuple[tuple[str, int], ...]) -> Forward:
    return Forward(problem, None if problem.is_empty else forward_source(problem, dict(configuration)))


def build_forward(problem: AttentionProblem, configuration: dict[str, int] | None = None) -> Forward:
    """The compiled forward kernel of a problem; ``configuration`` may fix BLOCK_M, BLOCK_N and SPLITS.

    Raises CodegenError for a dtype or device that C++ kernels do not handle, OptionError for a size that is none,
    BuildError without a compiler.
    """
    given = {name: value for name, value in (configuration or {}).items() if value is not None}
    found = _forward(problem, tuple(sorted(given.items())))
    if found.made is not None:
        _ = found.entry  # what cannot be compiled is found out here
    return found


class Backward(_Launcher):
    """``backward(query, key, value, out, lse, d_out, d_lse, block_mask, captured)``: a list of gradients.

    ``d_lse`` may be None. The gradients of query, key and value are contiguous and of the problem's dtype; those of the
    captured tensors that require one follow in order, in the accumulator's type.
    """

    def __init__(self, problem: AttentionProblem, configuration: dict[str, int]):
        self.problem = problem
        self.configuration = configuration
        self.kernels: dict[bool, _Launcher] = {}
        super().__init__(problem, None if problem.is_empty else self.kernel(False).made)

    def kernel(self, lse_gradient: bool) -> _Launcher:
        """The kernel without or with a gradient of the logarithm of sums, built when it is first called."""
        if lse_gradient not in self.kernels:
            made = backward_source(self.problem, self.configuration, lse_gradient)
            self.kernels[lse_gradient] = _Launcher(self.problem, made)
        return self.kernels[lse_gradient]

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
        d_out: torch.Tensor, d_lse: torch.Tensor | None, block_mask: Any = None, captured: Sequence[torch.Tensor] = (),
    ) -> list[torch.Tensor]:  # fmt: skip
        problem = self.problem
        gradients = [
            torch.empty_strided(tensor.shape, strides, dtype=problem.dtype)
            for tensor, strides in zip((query, key, value), problem.gradient_strides, strict=True)
        ]
        learned = [part for part in problem.captured if part.requires_grad]
        if problem.is_empty:
            made = [torch.zeros(part.shape, dtype=problem.accumulator) for part in learned]
            return [*(gradient.zero_() for gradient in gradients), *made]
        launcher = self.kernel(d_lse is not None)
        result, d_result = (_laid_out(tensor, problem) for tensor in (out, d_out))
        sums = [lse] if d_lse is None else [lse, d_lse.to(problem.accumulator)]
        slots = {
            number: torch.zeros(launcher.made.slots, size, dtype=torch.float64)
            for number, size in launcher.made.gradients
        }
        launcher.pointers([
            query, key, value, result, sums[0].contiguous(), d_result, *(x.contiguous() for x in sums[1:]),
            *launcher.lists(block_mask), *captured, *launcher.workspace(), *slots.values(), *gradients,
        ])  # fmt: skip
        return [*gradients, *(_learned(problem, number, part, slots) for number, part in enumerate(problem.captured)
                              if part.requires_grad)]  # fmt: skip


def _laid_out(tensor: torch.Tensor, problem: AttentionProblem) -> torch.Tensor:
    """A result or its gradient with the strides that kernels expect."""
    if tensor.stride() == problem.output_strides:
        return tensor
    return torch.empty_strided(tensor.shape, problem.output_strides, dtype=problem.dtype).copy_(tensor)


def _learned(problem: AttentionProblem, number: int, part: Any, slots: dict[int, torch.Tensor]) -> torch.Tensor:
    """The gradient of a captured tensor: its slots, summed in order."""
    if number not in slots or 0 in part.shape:
        return torch.zeros(part.shape, dtype=problem.accumulator)
    total = slots[number][0]
    for slot in slots[number][1:]:
        total += slot
    return total.as_strided(part.shape, part.strides).to(problem.accumulator)


@functools.lru_cache(maxsize=256)
def _backward(problem: AttentionProblem, configuration: tuple[tuple[str, int], ...]) -> Backward:
    return Backward(problem, dict(configuration))


def build_backward(problem: AttentionProblem, configuration: dict[str, int] | None = None) -> Backward:
    """The backward pass of a problem; ``configuration`` and errors as for :func:`build_forward`, and CaptureError
    where ``score_mod`` has no derivative."""
    given = {name: value for name, value in (configuration or {}).items() if value is not None}
    return _backward(problem, tuple(sorted(given.items())))


def clear() -> None:
    """Forget every kernel built here."""
    _forward.cache_clear()
    _backward.cache_clear()
