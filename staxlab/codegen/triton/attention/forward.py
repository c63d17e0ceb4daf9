"""The general forward template of attention on GPUs (Section 9.10, Figure 9.2).

One program instance makes the results of BLOCK_M queries of one head: it keeps its queries on chip, walks over the
tiles of keys and values that the block mask leaves, and carries (m, l, acc) along. Neither the scores nor their
exponentials are ever in memory, and for the backward pass only the logarithm of the sum is kept.

Where rows of blocks differ in length, as under a causal mask, those of a head start longest first (Graham, 1969,
"Bounds on multiprocessing timing anomalies"). What is started last is then short, and no multiprocessor works alone at
the end.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ....attention.problem import AttentionProblem
from ....errors import CodegenError
from ....options import Decision
from ....provenance import CodeWriter
from ...kernel import Kernel
from .configurations import (
    AttentionConfiguration,
    candidates,
    default_configuration,
    shared_bytes,
    why_not_divided,
)  # fmt: skip
from .pieces import list_row, require_supported, walked
from .running import AttentionRun, Traffic
from .texts import FORWARD
from .writer import ForwardWriter, description_of


def forward_kernel(
    problem: AttentionProblem, configuration: AttentionConfiguration | None = None, suffix: str = ""
) -> Kernel:
    """The kernel of a problem; ``configuration`` overrides the rule. CodegenError for what Triton cannot express or
    tiles that do not divide the mask's blocks."""
    require_supported(problem)
    chosen = configuration or default_configuration(problem)
    require_divided(problem, chosen)
    problem = walked(problem)
    writer = ForwardWriter(problem, f"triton_attention{suffix}", configuration=chosen)
    writer.inputs()
    if problem.blocks is not None and chosen.heaviest_first:
        writer.argument("heaviest", "input", torch.int32)
    writer.argument("out", "output", problem.dtype)
    writer.argument("lse", "output", torch.float32)
    rows = writer.row_tiles
    names = {"rows": rows, "heads": problem.query_heads, "group": problem.group, "query": writer.query_load()}
    holes = {
        "asserts": _asserts(writer), "row": _row(writer), "edges": writer.edges(), "operands": writer.operand_lines(),
        "state": writer.state(), "loops": writer.loops(), "results": writer.results(),
    }  # fmt: skip
    body = writer.fill(FORWARD, holes, names)
    description = description_of(problem)
    description.append(f"Every program instance makes {chosen.block_m} rows of one head's results.")
    launch_grid = rows * problem.batch * problem.query_heads
    traffic = forward_traffic(problem, chosen)
    kernel = writer.kernel(
        body, description, writer.constants(), chosen.num_warps, chosen.num_stages, (launch_grid, 1, 1),
        form="attention", decisions=(_decision(problem, chosen, launch_grid, traffic),),
        bytes_read=traffic.read, bytes_written=traffic.written,
        operations=2 * problem.batch * problem.query_heads * problem.queries * problem.keys
        * (problem.head_size + problem.value_size),
    )  # fmt: skip
    if chosen.fetch:
        # Descriptors hold addresses at multiples of 16 bytes; where a tensor starts elsewhere, this kernel runs.
        plain = replace(default_configuration(problem, fetch=False), heaviest_first=chosen.heaviest_first)
        kernel.launch["unaligned"] = forward_kernel(problem, plain, f"{suffix}_unaligned")
    return kernel


def require_divided(problem: AttentionProblem, configuration: AttentionConfiguration) -> None:
    """CodegenError if tiles cannot walk the blocks of the mask."""
    reason = why_not_divided(problem, configuration)
    if reason:
        raise CodegenError(reason, remedy="choose tiles that divide the block mask's BLOCK_SIZE")


def _asserts(writer: ForwardWriter) -> CodeWriter:
    """No bound was written where blocks divide, so a launch with others must not compile."""
    lines, problem = CodeWriter(), writer.problem
    sides = [("BLOCK_M", problem.queries, not writer.ragged_queries), ("BLOCK_N", problem.keys, not writer.ragged_keys)]
    for name, size, divides in sides:
        if divides:
            lines.emit(f'tl.static_assert({size} % {name} == 0, "{name} must divide {size}: there is no mask")')
    return lines


def _row(writer: ForwardWriter) -> CodeWriter:
    """Which rows of the head this program instance makes."""
    lines, problem, c = CodeWriter(), writer.problem, writer.configuration
    if problem.blocks is None or not c.heaviest_first:
        lines.emit("row = position")
        if problem.blocks is not None:
            inside = problem.blocks.rows // c.block_m
            writer.row_block = f"row // {inside}" if inside > 1 else "row"
        return lines
    blocks, _ = problem.blocks.counts(problem.queries, problem.keys)
    inside = problem.blocks.rows // c.block_m  # tiles in a row of blocks
    writer.row_block = "block_row"
    place = list_row(problem, blocks, f"position // {inside}" if inside > 1 else "position")
    lines.emit(f"block_row = tl.load(heaviest + {place})  # rows with many blocks start first")
    lines.emit(f"row = block_row * {inside} + position % {inside}" if inside > 1 else "row = block_row")
    return lines


def _decision(problem: AttentionProblem, chosen: AttentionConfiguration, grid: int, traffic: Traffic) -> Decision:
    shared = shared_bytes(problem, chosen)
    reason = (
        f"{grid:,} program instances for {problem.device.multiprocessors} multiprocessors; {chosen.num_stages} stages "
        f"and the queries take {shared:,} bytes of shared memory; without a mask, {traffic.read:,} bytes are read"
    )
    inputs = (("instances", grid), ("shared bytes", shared), ("bytes read", traffic.read))
    return Decision("launch", "attention", str(chosen), reason, tuple(map(str, candidates(problem)[:8])), inputs)


def forward_traffic(
    problem: AttentionProblem, configuration: AttentionConfiguration, visited: int | None = None
) -> Traffic:
    """Bytes that the program instances of the forward kernel ask for; ``visited`` is the number of blocks of the mask
    that are visited, over all batches and heads (default: all there are, or no mask)."""
    itemsize = problem.dtype.itemsize
    heads = problem.batch * problem.query_heads
    tiles = -(-problem.queries // configuration.block_m)
    row = (problem.head_size + problem.value_size) * itemsize
    if problem.blocks is None or visited is None:
        keys = heads * tiles * problem.keys * row
    else:
        keys = visited * math.ceil(problem.blocks.rows / configuration.block_m) * problem.blocks.columns * row
    queries = heads * problem.queries * problem.head_size * itemsize
    return Traffic(queries, keys, heads * problem.queries * (problem.value_size * itemsize + 4))


def forward_source(problem: AttentionProblem, configuration: AttentionConfiguration | None = None) -> Kernel:
    """The text of the forward kernel with the origins of its lines (``.source``, ``.lines``), nothing compiled."""
    return forward_kernel(problem, configuration)


def build_forward(problem: AttentionProblem, configuration: AttentionConfiguration | None = None) -> AttentionRun:
    """What runs a problem: ``run(query, key, value, block_mask, captured)`` returns the result and the logarithm of the
    sum of exponentials. On CPU tensors through Triton's interpreter. CodegenError as :func:`forward_kernel` has it."""
    chosen = configuration or default_configuration(problem)
    return AttentionRun(problem, chosen, (forward_kernel(problem, chosen),))
