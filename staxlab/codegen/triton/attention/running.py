"""Calling the generated kernels of attention with tensors (Section 9.10)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....attention.problem import AttentionProblem
from ....errors import CodegenError
from ....provenance import Line
from ...kernel import Kernel
from .configurations import AttentionConfiguration

LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


@dataclass(frozen=True)
class Traffic:
    """Bytes that program instances ask for: ``queries``, ``keys`` (with values; many of them are in the cache when they
    are asked for again) and results ``written``; ``parts`` of a split are written and read once."""

    queries: int
    keys: int
    written: int
    parts: int = 0

    @property
    def read(self) -> int:
        return self.queries + self.keys + self.parts

    @property
    def total(self) -> int:
        return self.read + self.written + self.parts


def launcher(kernel: Kernel) -> Callable[..., None]:
    """``launch(*tensors)``: on a CUDA device compiled at the first call, elsewhere interpreted."""
    from ..interpreter import interpret

    compiled: list[Any] = []

    def launch(*tensors: torch.Tensor) -> None:
        if not tensors[0].is_cuda:
            askew = "unaligned" in kernel.launch and any(tensor.data_ptr() % 16 for tensor in tensors)
            interpret(kernel.launch["unaligned"] if askew else kernel, [tensor.detach() for tensor in tensors])
            return
        if not compiled:
            from ..launcher import load

            compiled.append(load(kernel))
        compiled[0](*tensors)

    launch.kernel = kernel
    return launch


_orders: Any = None


def heaviest_first(block_mask: Any) -> torch.Tensor:
    """The rows of blocks of each (batch, head) of a block mask, int32 [Bm, Hm, R], most visited blocks first. Made once
    for each block mask, on its device; nothing is copied to the host.

    While a CUDA graph is recorded it is made as a part of the graph: a recording reads addresses, and what is kept here
    goes with the block mask, while another mask may come to stand where that stood.
    """
    global _orders
    counts = block_mask.kv_num_blocks
    if counts.is_cuda and torch.cuda.is_current_stream_capturing():
        return _ordered(block_mask)
    if _orders is None:
        from torch.utils.weak import WeakIdKeyDictionary

        _orders = WeakIdKeyDictionary()
    known = _orders.get(counts)
    if known is None:
        known = _orders[counts] = _ordered(block_mask)
    return known


def _ordered(block_mask: Any) -> torch.Tensor:
    visited = block_mask.kv_num_blocks + block_mask.full_kv_num_blocks
    # A stable sort of the negated counts, so that of equal rows the later ones, whose keys are cached, come first.
    order = torch.argsort(visited.flip(-1), dim=-1, descending=True, stable=True)
    return (visited.shape[-1] - 1 - order).to(torch.int32).contiguous()


def clear() -> None:
    """Forget the orders of rows."""
    if _orders is not None:
        _orders.clear()


@dataclass(frozen=True, eq=False)
class AttentionRun:
    """A problem as kernels that run one after the other: ``run(query, key, value, block_mask, captured)``.

    The tensors must have the layouts that the problem names; ``block_mask`` is anything with the lists of a
    :class:`~staxlab.attention.block_mask.BlockMask`, or None; ``captured`` are the tensors of ``problem.captured`` in
    its order. Returns the result [batch, query_heads, queries, value_size] of ``problem.dtype`` with
    ``problem.output_strides``, and the logarithm of the sum of exponentials [batch, query_heads, queries], float32.
    """

    problem: AttentionProblem
    configuration: AttentionConfiguration
    kernels: tuple[Kernel, ...]

    @property
    def source(self) -> str:
        """The text of all kernels."""
        return "\n\n".join(kernel.source for kernel in self.kernels)

    @property
    def listing(self) -> tuple[Line, ...]:
        """The lines of all kernels, each with the nodes of the modifications' graphs that it stems from."""
        return tuple(line for kernel in self.kernels for line in kernel.lines)

    def traffic(self, visited: int | None = None) -> Traffic:
        """Bytes that are asked for; ``visited`` is the number of blocks that are visited, over batches and heads."""
        from .decoding import decoding_traffic
        from .forward import forward_traffic

        model = decoding_traffic if self.configuration.splits else forward_traffic
        return model(self.problem, self.configuration, visited)

    @functools.cached_property
    def launchers(self) -> tuple[Callable[..., None], ...]:
        return tuple(launcher(kernel) for kernel in self.kernels)

    @functools.cached_property
    def captured_names(self) -> tuple[str, ...]:
        """What the kernels call the captured tensors, in the problem's order."""
        parts = [part for part in (self.problem.score, self.problem.mask) if part is not None]
        return tuple(f"{part.kind}_{captured.name}" for part in parts for captured in part.captured)

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block_mask: Any = None,
        captured: Sequence[torch.Tensor] = (),
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        problem, device = self.problem, query.device
        rows = (problem.batch, problem.query_heads, problem.queries)
        if problem.is_empty:
            return self._empty(device).zero_(), torch.full(rows, float("-inf"), dtype=torch.float32, device=device)
        if (problem.blocks is None) != (block_mask is None) or len(captured) != len(self.captured_names):
            masks = "no block mask" if block_mask is None else "a block mask"
            raise CodegenError(
                f"{problem}: given {masks} and {len(captured)} captured tensors",
                remedy="call it with what the problem was made from",
            )
        tensors = {"query": query, "key": key, "value": value}
        if block_mask is not None:
            tensors |= {name: getattr(block_mask, name).contiguous() for name in LISTS}
        tensors |= zip(self.captured_names, captured, strict=True)
        tensors["out"] = self._empty(device)
        tensors["lse"] = torch.empty(rows, dtype=torch.float32, device=device)
        for launch in self.launchers:
            for argument in launch.kernel.arguments:
                if argument.name in tensors:
                    continue
                if argument.name == "heaviest":
                    tensors["heaviest"] = heaviest_first(block_mask)
                else:  # the state of the shares of a split
                    size = launch.kernel.launch["parts"][argument.name]
                    tensors[argument.name] = torch.empty(size, dtype=argument.dtype, device=device)
            launch(*(tensors[argument.name] for argument in launch.kernel.arguments))
        return tensors["out"], tensors["lse"]

    def _empty(self, device: torch.device) -> torch.Tensor:
        problem = self.problem
        shape = (problem.batch, problem.query_heads, problem.queries, problem.value_size)
        return torch.empty_strided(shape, problem.output_strides, dtype=problem.dtype, device=device)
