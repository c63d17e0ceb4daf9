"""The gradients of attention on a GPU, with derivatives of the user's score_mod (Section 9.10).

Three kernels: one number or two for every row; the gradients of keys, values and captured tensors, a program instance
for every tile of keys; the gradient of queries, a program instance for every tile of queries. Scores are made twice,
which is two products of five more than one kernel with atomic additions would need, and nothing but the gradients of
captured tensors depends on the order in which program instances run: gradients of queries, keys and values repeat bit
by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ....attention.problem import AttentionProblem
from ....errors import CodegenError
from ....options import Decision
from ....provenance import Line
from ...kernel import Kernel, KernelSet
from .backward_configurations import BackwardConfiguration, default_configuration, learnable, require_fitting
from .backward_writer import BackwardWriter, Layouts, once
from .pieces import require_supported, walked
from .running import launcher


def build_backward(problem: AttentionProblem, configuration: Any = None) -> AttentionBackward:
    """What computes the gradients of ``problem``.

    ``configuration`` is a :class:`BackwardConfiguration`, or None for the rule's. A mapping, the user's
    ``kernel_options``, is taken for None: those are the tiles of the forward pass. CodegenError where no Triton kernel
    can have the problem, or the configuration does not divide the blocks of its mask.
    """
    return AttentionBackward(problem, None if isinstance(configuration, Mapping) else configuration)


def backward_source(problem: AttentionProblem, configuration: BackwardConfiguration | None = None) -> str:
    """The three kernels as text, for a gradient that has the strides of the result."""
    return build_backward(problem, configuration).source


class AttentionBackward:
    """``backward(query, key, value, output, lse, d_output, d_lse, block_mask, captured, wanted)`` makes gradients.

    Tensors are as the problem has them; ``output`` [B, Hq, N, Dv], ``lse`` [B, Hq, N] float32, ``d_output`` and
    ``d_lse`` (or None) may have any strides. ``block_mask`` has the lists of a
    :class:`staxlab.attention.block_mask.BlockMask` as attributes. ``captured`` are the tensors that the modifications
    read, in the order of ``problem.captured``; ``wanted`` says of each whether a gradient is wanted (default: where
    the problem says that it requires one).

    Returns ``(d_query, d_key, d_value, *gradients of captured tensors wanted)``: of the inputs' dtypes, the first three
    with ``problem.gradient_strides``, the others contiguous.
    The gradients of captured tensors are summed in float32 and rounded once; the order of their summation is not fixed,
    so their last bits may differ from run to run. Those of queries, keys and values repeat bit by bit.

    Five products of 2 B Hq N M D floating-point operations as the definition counts them, seven as they are executed;
    8 B Hq N bytes of memory beside the gradients.
    """

    def __init__(self, problem: AttentionProblem, configuration: BackwardConfiguration | None = None):
        require_supported(problem)
        if problem.is_empty:
            raise CodegenError(f"{problem} has nothing to compute", remedy="its gradients are zero")
        self.problem = problem = walked(problem)
        self.decisions: tuple[Decision, ...] = ()
        if configuration is None:
            configuration, self.decisions = default_configuration(problem)
        require_fitting(problem, configuration)
        self.configuration = configuration
        self._kernels: dict[Layouts, tuple[Kernel, Kernel, Kernel]] = {}
        self._launchers: dict[Layouts, tuple[Callable[..., None], ...]] = {}

    # -- the texts ----------------------------------------------------------------------------------------------------

    def kernels(self, layouts: Layouts | None = None) -> tuple[Kernel, Kernel, Kernel]:
        """The kernels in order, for a layout of what comes in (default: the gradient has the strides of the result,
        and the logarithm of the sum has none)."""
        layouts = layouts or Layouts(self.problem.output_strides, self.problem.output_strides, with_d_lse=False)
        if layouts not in self._kernels:
            writer = BackwardWriter(self.problem, self.configuration, layouts)
            by_kernel = (self.decisions[:1], self.decisions[1:])
            self._kernels[layouts] = writer.rows(), writer.keys(by_kernel[0]), writer.queries(by_kernel[1])
        return self._kernels[layouts]

    @property
    def source(self) -> str:
        return "\n\n".join(kernel.source for kernel in self.kernels())

    @property
    def listing(self) -> tuple[Line, ...]:
        """The lines of all kernels, each with its origins; those of a modification have the nodes of its own graph."""
        return tuple(line for kernel in self.kernels() for line in (*kernel.lines, Line("")))

    def __str__(self) -> str:
        return self.source

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ....view import mimebundle

        return mimebundle(KernelSet(self.kernels()))

    def traffic(self) -> dict[str, int]:
        """Bytes that the kernels move if every element is moved once: what the cache has to be good for. A tile that is
        visited again is read again, from the cache if the tiles of a head fit."""
        rows = self.kernels()[0]
        moved = {"rows": rows.bytes_read + rows.bytes_written}
        return moved | {over: sum(once(self.problem, over)) for over in ("keys", "queries")}

    # -- running them -------------------------------------------------------------------------------------------------

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output: torch.Tensor,
        lse: torch.Tensor,
        d_output: torch.Tensor,
        d_lse: torch.Tensor | None = None,
        block_mask: Any = None,
        captured: Sequence[torch.Tensor] = (),
        wanted: Sequence[bool] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        problem = self.problem
        if (problem.blocks is None) != (block_mask is None) or len(captured) != len(problem.captured):
            masked = "no" if block_mask is None else "a"
            raise CodegenError(
                f"{problem}: given {masked} block mask and {len(captured)} captured tensors",
                remedy="call it with what the problem was made from",
            )
        layouts = Layouts(output.stride(), d_output.stride(), d_lse is not None)
        shift, delta = (torch.empty(lse.shape, dtype=torch.float32, device=lse.device) for _ in range(2))
        gradients = [
            torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
            for tensor, strides in zip((query, key, value), problem.gradient_strides, strict=True)
        ]
        d_query, d_key, d_value = gradients
        made = learnable(problem)
        buffers = {number: _buffer(problem.captured[number], query.device) for number in made}
        rows = [output, d_output, lse.contiguous(), *(() if d_lse is None else (d_lse.contiguous(),)), shift, delta]
        shared = [query, key, value, d_output, shift, delta]
        lists: dict[str, list[torch.Tensor]] = {"q": [], "kv": []}
        if problem.blocks is not None:
            for side in lists:
                names = (f"{side}_num_blocks", f"{side}_indices", f"full_{side}_num_blocks", f"full_{side}_indices")
                lists[side] = [getattr(block_mask, name).contiguous() for name in names]
        over_keys = [*shared, *lists["q"], *captured, d_key, d_value, *buffers.values()]
        over_queries = [*shared, *lists["kv"], *captured, d_query]
        self._run(layouts, (rows, over_keys, over_queries))
        if wanted is None:
            wanted = [tensor.requires_grad for tensor in problem.captured]
        for number, wants in enumerate(wanted):
            if wants:
                tensor = problem.captured[number]
                buffer = buffers[number] if number in buffers else _buffer(tensor, query.device)
                found = buffer.as_strided(tensor.shape, tensor.strides)
                gradients.append(found.to(tensor.dtype).contiguous())
        return tuple(gradients)

    def _run(self, layouts: Layouts, arguments: tuple[list[torch.Tensor], ...]) -> None:
        if layouts not in self._launchers:
            self._launchers[layouts] = tuple(launcher(kernel) for kernel in self.kernels(layouts))
        for launch, tensors in zip(self._launchers[layouts], arguments, strict=True):
            launch(*tensors)


def _buffer(tensor: Any, device: torch.device) -> torch.Tensor:
    """Zeros in float32 at the subscripts of a captured tensor: one for each place that its strides reach."""
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides, strict=True))
    return torch.zeros(0 if 0 in tensor.shape else reach, dtype=torch.float32, device=device)
