"""Attention of few queries over many keys: the keys are split among program instances (Sections 6.5 and 9.10).

While a model generates text there is one query per sequence, and the general template would leave most of the device
idle: it has one program instance for each head. Merging (m, l, acc) is associative, so the keys of a head may be cut
into shares, each worked on by its own instance, and the states of the shares merged by a second, small kernel.

Reading the keys is all that takes time. So the heads that share keys (grouped-query attention) are worked on together:
their queries are the rows of one tile, and every key is read once. Only where the blocks to visit differ between such
heads does each get instances of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ....attention.problem import AttentionProblem
from ....errors import CodegenError
from ....options import Decision
from ....provenance import CodeWriter
from ...kernel import Kernel
from ..operations import triton_dtype
from ..tiling import next_power_of_two
from .configurations import (
    AttentionConfiguration,
    decoding_configuration,
    is_packed,
    why_not_decoding,
    why_not_divided,
)  # fmt: skip
from .pieces import LN_2, KernelWriter, Operand, require_supported, walked
from .running import AttentionRun, Traffic
from .texts import MERGE, PACKED, PARTS, UNPACKED
from .writer import ForwardWriter, description_of


@dataclass
class DecodingWriter(ForwardWriter):
    """The shares of a split. A row's head is a vector where several heads share a tile."""

    decoding: bool = True
    row_block: str = "0"

    def rows_of(self, operand: Operand) -> str:
        if not self.packed:
            return operand.base()
        batch, head, *_ = operand.strides
        return f"{operand.pointer} + b.to(tl.int64) * {batch} + h.to(tl.int64) * {head}"

    @property
    def used(self) -> int:
        """Rows of the tile that are queries."""
        return self.problem.queries * (self.problem.group if self.packed else 1)

    def result_row(self) -> str:
        """The number of each row among all rows of the result, those of a head one after the other."""
        if self.packed:
            return f"(b.to(tl.int64) * {self.problem.key_heads} + key_head) * {self.used} + rows"
        return f"head.to(tl.int64) * {self.problem.queries} + rows"

    def lse_rows(self) -> str:
        return f"lse + {self.result_row()}"

    def lse_mask(self) -> str:
        return f", rows < {self.used}"

    def results(self) -> CodeWriter:
        """The state of this share; without a split, the results themselves."""
        if self.configuration.splits == 1:
            return super().results()
        problem, lines = self.problem, CodeWriter()
        rows = problem.batch * problem.query_heads * problem.queries
        lines.emit(f"part = split.to(tl.int64) * {rows} + {self.result_row()}")
        names = {
            "value_size": problem.value_size,
            "mask": f", {' & '.join(['m_mask', *self.e_masks()])}",
            "lse_mask": self.lse_mask(),
        }
        lines.extend(self.fill(PARTS, {}, names).lines())
        return lines


def decoding_kernels(
    problem: AttentionProblem, configuration: AttentionConfiguration | None = None, suffix: str = ""
) -> tuple[Kernel, ...]:
    """The kernel that works on the shares and, if there are several, the one that merges them. CodegenError for
    problems that the template does not take (:func:`why_not_decoding`)."""
    require_supported(problem)
    chosen = configuration or decoding_configuration(problem)
    reason = why_not_decoding(problem) or why_not_divided(problem, _columns_only(problem, chosen))
    if reason:
        raise CodegenError(f"{problem} is not for the decoding template: {reason}", remedy="use the general template")
    problem = walked(problem)
    packed = is_packed(problem)
    first = f"key_head * {problem.group}" if problem.group > 1 else "key_head"  # of the heads that share a tile
    writer = DecodingWriter(
        problem, f"triton_attention_decode{suffix}", configuration=chosen, packed=packed,
        list_head=first if packed else "h",
    )  # fmt: skip
    writer.inputs()
    rows = problem.batch * problem.query_heads * problem.queries
    parts = {
        "part_acc": chosen.splits * rows * problem.value_size, "part_max": chosen.splits * rows,
        "part_sum": chosen.splits * rows,
    }  # fmt: skip
    if chosen.splits == 1:
        writer.argument("out", "output", problem.dtype)
        writer.argument("lse", "output", torch.float32)
    else:
        for name in parts:
            writer.argument(name, "output", torch.float32)
    names = {
        "heads": problem.query_heads, "key_heads": problem.key_heads, "group": problem.group,
        "queries": problem.queries, "used": writer.used, "query": writer.query_load(),
    }  # fmt: skip
    holes = {
        "edges": writer.edges(), "operands": writer.operand_lines(), "state": writer.state(),
        "loops": writer.loops(), "results": writer.results(),
    }  # fmt: skip
    body = writer.fill(PACKED if packed else UNPACKED, holes, names)
    units = problem.batch * (problem.key_heads if packed else problem.query_heads)
    description = description_of(problem)
    description.append(f"The keys are split into {chosen.splits} shares, each for one program instance.")
    traffic = decoding_traffic(problem, chosen)
    kernel = writer.kernel(
        body, description, writer.constants(), chosen.num_warps, chosen.num_stages, (units * chosen.splits, 1, 1),
        form="attention-decoding", decisions=(_decision(problem, chosen, units),),
        bytes_read=traffic.queries + traffic.keys,
        bytes_written=traffic.parts if chosen.splits > 1 else traffic.written,
        operations=2 * rows * problem.keys * (problem.head_size + problem.value_size),
    )  # fmt: skip
    if chosen.splits == 1:
        return (kernel,)
    kernel.launch["parts"] = parts
    return kernel, _merge_kernel(problem, chosen, suffix)


def _columns_only(problem: AttentionProblem, configuration: AttentionConfiguration) -> AttentionConfiguration:
    """The configuration as far as the mask's blocks matter to decoding: all queries lie in one row of blocks."""
    rows = problem.blocks.rows if problem.blocks is not None else configuration.block_m
    return replace(configuration, block_m=rows)


def _merge_kernel(problem: AttentionProblem, chosen: AttentionConfiguration, suffix: str) -> Kernel:
    """One program instance for each row of the result: the states of all shares, merged."""
    writer = KernelWriter(problem, f"triton_attention_merge{suffix}")
    for name in ("part_acc", "part_max", "part_sum"):
        writer.argument(name, "input", torch.float32)
    writer.argument("out", "output", problem.dtype)
    writer.argument("lse", "output", torch.float32)
    value = next_power_of_two(problem.value_size)
    edges, place = CodeWriter(), CodeWriter()
    ragged = value != problem.value_size
    if ragged:
        edges.emit(f"e_mask = e < {problem.value_size}")
    batch, head, row, _ = problem.output_strides
    place.emit(f"b = row // {problem.query_heads * problem.queries}")
    place.emit(f"h = row // {problem.queries} % {problem.query_heads}")
    place.emit(f"m = row % {problem.queries}")
    rows = problem.batch * problem.query_heads * problem.queries
    names = {
        "rows": rows, "splits": chosen.splits, "value_size": problem.value_size,
        "mask": f"(split < {chosen.splits})[:, None]" + (" & e_mask[None, :]" if ragged else ""),
        "out": f"out + b * {batch} + h * {head} + m * {row} + e",
        "result": "total" if problem.dtype == torch.float32 else f"total.to({triton_dtype(problem.dtype)})",
        "store_mask": ", e_mask" if ragged else "", "ln_2": repr(LN_2),
    }  # fmt: skip
    body = writer.fill(MERGE, {"edges": edges, "place": place}, names)
    size = chosen.splits * rows * (problem.value_size + 2) * 4
    return writer.kernel(
        body, [f"Merges {chosen.splits} shares of the keys into each of {rows} rows."],
        {"SHARES": next_power_of_two(chosen.splits), "VALUE": value}, 4, 1, (rows, 1, 1), form="attention-merge",
        bytes_read=size, bytes_written=rows * (problem.value_size * problem.dtype.itemsize + 4),
        operations=3 * chosen.splits * rows * problem.value_size,
    )  # fmt: skip


def _decision(problem: AttentionProblem, chosen: AttentionConfiguration, units: int) -> Decision:
    reason = (
        f"{units:,} groups of queries times {chosen.splits} shares for {problem.device.multiprocessors} "
        f"multiprocessors; a share has about {-(-problem.keys // chosen.splits):,} keys"
    )
    return Decision("launch", "attention", str(chosen), reason, (), (("groups", units), ("splits", chosen.splits)))


def prefers_decoding(problem: AttentionProblem) -> Decision:
    """Whether the decoding template is the better one: where it takes the problem, the general template would leave
    most multiprocessors without work, or would read keys several times for the heads that share them."""
    ways = ("decode", "triton")
    rule = decoding_configuration(problem)
    reason = why_not_decoding(problem) or why_not_divided(problem, _columns_only(problem, rule))
    if reason:
        return Decision("attention template", "attention", "triton", reason, ways)
    instances = problem.batch * problem.query_heads
    wanted = max(problem.device.multiprocessors, 1)
    splits = rule.splits
    inputs = (("instances without a split", instances), ("splits", splits), ("heads that share keys", problem.group))
    if splits > 1 or problem.group > 1:
        reason = f"{instances} instances for {wanted} multiprocessors: the keys are split into {splits} shares"
        return Decision("attention template", "attention", "decode", reason, ways, inputs)
    return Decision("attention template", "attention", "triton", "every multiprocessor has work", ways, inputs)


def decoding_traffic(
    problem: AttentionProblem, configuration: AttentionConfiguration, visited: int | None = None
) -> Traffic:
    """Bytes that the decoding kernels ask for; ``visited`` as :func:`~.forward.forward_traffic` has it."""
    itemsize = problem.dtype.itemsize
    packed = is_packed(problem)
    units = problem.batch * (problem.key_heads if packed else problem.query_heads)
    row = (problem.head_size + problem.value_size) * itemsize
    if problem.blocks is None or visited is None:
        keys = units * problem.keys * row
    else:
        keys = visited * problem.blocks.columns * row // (problem.group if packed else 1)
    rows = problem.batch * problem.query_heads * problem.queries
    parts = configuration.splits * rows * (problem.value_size + 2) * 4 if configuration.splits > 1 else 0
    queries = rows * problem.head_size * itemsize * configuration.splits
    return Traffic(queries, keys, rows * (problem.value_size * itemsize + 4), parts)


def decoding_source(
    problem: AttentionProblem, configuration: AttentionConfiguration | None = None
) -> tuple[Kernel, ...]:
    """The texts of the decoding kernels with the origins of their lines, nothing compiled."""
    return decoding_kernels(problem, configuration)


def build_decoding(problem: AttentionProblem, configuration: AttentionConfiguration | None = None) -> AttentionRun:
    """What runs a problem by splitting its keys; called and refused as :func:`~.forward.build_forward` has it."""
    chosen = configuration or decoding_configuration(problem)
    return AttentionRun(problem, chosen, decoding_kernels(problem, chosen))
