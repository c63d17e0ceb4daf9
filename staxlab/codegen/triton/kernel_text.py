"""Putting a kernel's text together: signature, index vectors, masks, computation, reduction, store (Section 9.2).

Four parts, as in Listing 9.1: (1) sizes as constants, so that Triton can simplify addresses and masks; (2) index
vectors and the masks of blocks that may hang over the edge; (3) one line per operation of the loop body, written by
:class:`~staxlab.codegen.triton.handler.TritonOps`; (4) the reduction along the second axis of the block, and the store.

A looped reduction (Section 9.4) carries a whole block of partial results around its loop and merges along the row only
once, after it: lane ``k`` adds up elements ``k, k + R0_BLOCK, k + 2*R0_BLOCK, ...``. The order is fixed by the block
size alone, so the result is the same from run to run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import CodegenError
from ...loops.expressions import Expr
from ...loops.ir import Layout
from ...options import Decision
from ...provenance import CodeWriter, Line, Origins
from ...schedule.records import Schedule, ScheduleNode
from ..kernel import KernelArgument
from .handler import BlockValue, Emission, TritonOps
from .launch import Launch
from .operations import write_preamble
from .reductions import INDEX_PADDING, RowReduction, neutral_element
from .scans import write_scan
from .scatters import is_atomic, write_scatter
from .space import GRID_LIMIT, BlockDim
from .tiling import LANE_ROOM, Form
from .whole_blocks import whole_blocks_decision

#: Data that should stay in the second-level cache may take one part in so many of it.
CACHE_SHARE = 4


@dataclass(frozen=True)
class KernelText:
    """A finished text: its lines, its arguments in order, whether it contains run-time checks, and what was decided
    while it was written."""

    lines: tuple[Line, ...]
    arguments: tuple[KernelArgument, ...]
    asserts: bool
    kernel_line: int
    decisions: tuple[Decision, ...] = ()

    @property
    def compiler_options(self) -> dict[str, object]:
        """What Triton is told: arithmetic as the program has it, and the run-time checks kept where there are any."""
        options: dict[str, object] = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
        return options | {"debug": True, "sanitize_overflow": False} if self.asserts else options


def own_origins(node: ScheduleNode) -> Origins:
    """Where the reduction and the store come from: the buffer's own nodes, those no operation of the body has; of a
    node that reduces nothing, those of the operation whose value is stored."""
    assert node.body is not None
    result = next(s.origins for s in node.body.all_statements() if s.id == node.body.result)
    own = node.origins - node.body.origins
    return own or (result if node.kind in ("pointwise", "scatter") else node.origins)


class KernelWriter:
    """Writes one schedule node as a kernel of the given form and launch configuration."""

    def __init__(self, schedule: Schedule, node: ScheduleNode, form: Form, launch: Launch, name: str):
        self.schedule, self.node, self.form, self.launch, self.name = schedule, node, form, launch, name
        self.space = form.space
        self.outer, self.inner = CodeWriter(), CodeWriter()
        self.looped = form.kind == "looped"
        if not self.looped:
            self.inner = self.outer  # no loop: every line in program order
        self.arguments = self._arguments()
        layouts: dict[str, Layout] = schedule.layouts
        masks = frozenset(dim.prefix for dim in self.space.dims if not launch.divides(dim))
        self.emission = Emission(
            space=self.space,
            outer=self.outer,
            inner=self.inner,
            masks=masks,
            pointers={a.buffer: a.name for a in self.arguments},
            dtypes={a.buffer: layouts[a.buffer].dtype for a in self.arguments},
            cache_hint=self._cache_hint,
            zero_fill=form.kind != "pointwise",
        )
        self.apart = whole_blocks_decision(schedule, node, form, launch, self.streams)
        self.whole: KernelWriter | None = None  # what wrote the body of whole blocks, if they have one of their own

    def _arguments(self) -> tuple[KernelArgument, ...]:
        layouts = self.schedule.layouts
        read = () if self.constant_result is not None else dict.fromkeys(a.buffer for a in self._loads())
        written = self.node.buffers[0]
        arguments = [KernelArgument(f"in_ptr{k}", b, "input", layouts[b].dtype) for k, b in enumerate(read)]
        role = "inout" if self.node.base is not None else "output"  # a scatter finds there what it adds to
        arguments.append(KernelArgument("out_ptr0", written, role, layouts[written].dtype))
        return tuple(arguments)

    def _loads(self) -> tuple:
        return self.node.body.reads()

    @property
    def constant_result(self) -> bool | int | float | None:
        """What an empty reduction yields everywhere, or None if the node is not one."""
        if self.node.kind != "reduction" or self.node.reduction_numel:
            return None
        if self.node.reduction in ("argmax", "argmin", "amax", "amin"):
            raise CodegenError(f"{self.node.name}: {self.node.reduction} of no elements has no value")
        return neutral_element(self.node.reduction, self.node.accumulate_dtype)

    def _cache_hint(self, buffer: str, flattened: Expr) -> str:
        """How long an element should stay in the cache: one that is read again and again, longest, if all of them leave
        room for others; one that nothing will read again, not at all. What is read at several subscripts, or at ones
        found at run time, is left to the cache, and so is all that a small pointwise kernel reads: it fits in."""
        pointwise = self.form.kind == "pointwise"
        accesses = [access for access in self.node.reads if access.buffer == buffer]
        if len(accesses) != 1 or self._gathers(flattened) or (pointwise and not self.streams):
            return ""
        (access,) = accesses
        elements = min(access.unique_elements, self.schedule.layouts[buffer].storage_elements)
        points = math.prod(dim.numel for dim in self.space.dims)
        if elements >= points:
            return "" if self._read_later(buffer) else "evict_first"
        little = CACHE_SHARE * self.schedule.bytes_of(access) <= self._cache_bytes
        return "evict_last" if little and elements > 1 else ""

    def _gathers(self, flattened: Expr) -> bool:
        """Whether a subscript holds something that was read at run time."""
        return not {symbol.name for symbol in flattened.symbols} <= {dim.index_name for dim in self.space.dims}

    @property
    def _cache_bytes(self) -> int:
        return self.schedule.device.l2_bytes or 32 << 20

    @property
    def streams(self) -> bool:
        """Whether the kernel moves more than the second-level cache holds."""
        traffic = self.schedule.bytes_read(self.node) + self.schedule.bytes_written(self.node)
        return traffic > self._cache_bytes

    def _read_later(self, buffer: str) -> bool:
        """Whether a later kernel of the region reads the buffer, and may still find it in the cache."""
        names = [node.name for node in self.schedule.nodes]
        later = self.schedule.nodes[names.index(self.node.name) + 1 :]
        return any(access.buffer == buffer for node in later for access in node.reads)

    # -- the parts ----------------------------------------------------------------------------------------------------

    def write(self) -> KernelText:
        """The kernel's text. CodegenError for what Triton cannot express."""
        if self.apart:
            self.whole = type(self)(self.schedule, self.node, self.form, self.launch, self.name)
            self.whole.emission.masks = frozenset()
            self.whole.write_body()
            self.emission.count = self.whole.emission.count  # names of their own
        self.write_body()
        return self._assemble()

    def write_body(self) -> None:
        """The computation and the stores."""
        ops = TritonOps(self.emission, self.node.origins)
        if self.node.kind == "scan" and self.node.is_empty:
            self.outer.emit("pass  # an empty box of subscripts", self.node.origins)
            return
        if self.node.kind == "scatter":
            target, value = self.node.body.replay_target(ops)
            last = write_scatter(TritonOps(self.emission, own_origins(self.node)), self.node, "out_ptr0", target, value)
            self.outer.emit(last, own_origins(self.node))
            return
        if self.constant_result is not None:
            value = ops.constant(self.constant_result, self.node.accumulate_dtype)
            result, origins = value, self.node.origins
        else:
            value = self.node.body.replay(ops)
            origins = own_origins(self.node)
            if self.node.kind == "scan":
                write_scan(self, value, origins)
                return
            result = value if self.form.kind == "pointwise" else self._reduce(value, origins)
        self._store(result, origins)

    def _assemble(self) -> KernelText:
        head = self._head()
        top, body = CodeWriter(), CodeWriter()
        with body.indent():
            head_lines = head.lines()
            body.extend(head_lines)
            if self.whole:
                self._branch(body, self.whole)
            else:
                body.extend(self.outer.lines())
        emission = self.emission
        write_preamble(top, self._description(), self.node.origins, emission.library, emission.helpers)
        parameters = [a.name for a in self.arguments]
        parameters += [dim.size_name for dim in self.space.dims]
        parameters += [f"{name}: tl.constexpr" for name in self._constexprs()]
        top.emit("@triton.jit")
        top.emit(f"def {self.name}({', '.join(parameters)}):", self.node.origins)
        kernel_line = len(top.lines())
        decided = (self.apart,) if self.apart else ()
        return KernelText((*top.lines(), *body.lines()), self.arguments, self.emission.asserts, kernel_line, decided)

    def _branch(self, body: CodeWriter, whole: KernelWriter) -> None:
        """The body of whole blocks, and that of the last one (:mod:`.whole_blocks`)."""
        (dim,), origins = self.space.dims, self.node.origins
        body.emit(f"if {dim.prefix}offset + {dim.block_name} <= {dim.size_name}:  # all points exist: no mask", origins)
        with body.indent():
            body.extend(whole.outer.lines())
        body.emit("else:  # the last block, which hangs over the edge", origins)
        with body.indent():
            self._mask(body, dim)
            body.extend(self.outer.lines())

    def _constexprs(self) -> list[str]:
        """Block sizes that are parameters; a persistent row's size is fixed by its length."""
        return [name for name in self.launch.blocks if not (name == "R0_BLOCK" and self.form.kind == "persistent")]

    def _description(self) -> list[str]:
        node = self.node
        written = f"{node.buffers[0]}: {self.schedule.layouts[node.buffers[0]]}"
        if node.kind == "scatter":
            how = "by atomic operations, in any order" if is_atomic(node) else "to one element each, or over each other"
            lines = [f"Scatter kernel of {node.name} ({node.reduction}): points send their elements {how}."]
        elif self.form.kind == "pointwise":
            blocks = " x ".join(dim.block_name for dim in self.space.dims)
            lines = [f"Pointwise kernel of {node.name}: every program instance makes {blocks} elements."]
        else:
            how = (
                "one program instance holds whole rows in registers (persistent)"
                if self.form.kind == "persistent"
                else "each program instance walks along its rows, R0_BLOCK elements at a time (looped)"
            )
            lines = [f"{node.kind.capitalize()} kernel of {node.name} ({node.reduction}): {how}."]
        return [*lines, f"Writes {written}"]

    def _head(self) -> CodeWriter:
        """Sizes, index vectors and masks."""
        head = CodeWriter()
        origins = self.node.origins
        for dim in self.space.dims:
            big = dim.numel > INDEX_PADDING - LANE_ROOM  # a loop's counter goes one step beyond
            value = f"tl.full([], {dim.numel}, tl.int64)" if big else str(dim.numel)
            head.emit(f"{dim.size_name} = {value}  # a constant of this version", origins)
        if self.form.kind == "persistent":
            size = self.launch.blocks["R0_BLOCK"]
            head.emit(f"R0_BLOCK: tl.constexpr = {size}  # the power of two that holds a row", origins)
        used = self._loop_names_used()
        for dim in self.space.dims:
            if dim.prefix != "r0_":
                self._program_index(head, dim, used)
        if self.form.kind == "persistent":
            dim = self.space.dim("r0_")
            lanes = f"tl.arange(0, R0_BLOCK){dim.slicing}" + (".to(tl.int64)" if self.form.wide else "")
            head.emit(f"r0_index = {lanes}  # all elements of a row at once", origins)
            self._mask(head, dim)
            self._loop_variables(head, dim, used)
        elif self.looped:
            head.emit(f"r0_base = tl.arange(0, R0_BLOCK){self.space.dim('r0_').slicing}", origins)
        return head

    def _bodies(self) -> list[ScheduleNode]:
        """The nodes whose bodies the kernel consists of."""
        return [self.node]

    def _loop_names_used(self) -> set[str]:
        expressions = []
        for node in self._bodies():
            expressions += [access.index for access in (*node.reads, *node.writes)]
            for statement in node.body.all_statements():
                expressions += [argument for argument in statement.args if isinstance(argument, Expr)]
        return self.space.used_names(self.space.flatten(expression) for expression in expressions)

    def _program_index(self, head: CodeWriter, dim: BlockDim, used: set[str]) -> None:
        number = f"tl.program_id({'xyz'.index(dim.prefix)})"
        instances = -(-dim.numel // self.launch.blocks[dim.block_name])
        if dim.prefix == "y" and len(self.space.dims) == 2 and instances > GRID_LIMIT:
            number = "(tl.program_id(1) + tl.program_id(2) * tl.num_programs(1))"
        if self.form.wide:
            number += ".to(tl.int64)"
        origins = self.node.origins
        head.emit(f"{dim.prefix}offset = {number} * {dim.block_name}  # where this program instance begins", origins)
        lanes = f"tl.arange(0, {dim.block_name}){dim.slicing}"
        head.emit(f"{dim.index_name} = {dim.prefix}offset + {lanes}  # the points it makes", origins)
        if not self.whole:
            self._mask(head, dim)
        self._loop_variables(head, dim, used)

    def _mask(self, writer: CodeWriter, dim: BlockDim) -> None:
        if dim.prefix in self.emission.masks:
            writer.emit(f"{dim.mask_name} = {dim.index_name} < {dim.size_name}  # those that exist", self.node.origins)
        elif dim.block_name in self._constexprs() and dim.prefix != "r0_":
            # No mask was emitted, so a launch with a block size that does not divide must not compile.
            why = f'"{dim.block_name} must divide {dim.numel}: the kernel has no {dim.mask_name}"'
            writer.emit(f"tl.static_assert({dim.numel} % {dim.block_name} == 0, {why})", self.node.origins)

    def _loop_variables(self, writer: CodeWriter, dim: BlockDim, used: set[str]) -> None:
        for symbol, value in dim.values().items():
            name = dim.loop_name(symbol)
            if name in used and self.space.names.get(value) == name:
                writer.emit(f"{name} = {value.format()}", self.node.origins)

    def _store(self, value: BlockValue, origins: Origins) -> None:
        node, space = self.node, self.space
        index = space.flatten(node.writes[0].index) if node.writes else Expr.of(0)
        stored = frozenset(d.prefix for d in space.dims if self.form.kind == "pointwise" or d.prefix != "r0_")
        ops = TritonOps(self.emission, origins)
        address, _ = ops.address("out_ptr0", index, stored)
        mask, _ = ops.mask_for(stored)
        arguments = [address, value.name, *([mask] if mask else [])]
        if self.form.kind == "pointwise" and self.streams and not self._read_later(node.buffers[0]):
            arguments.append("eviction_policy='evict_first'")
        self.outer.emit(f"tl.store({', '.join(arguments)})", origins)

    # -- reductions ---------------------------------------------------------------------------------------------------

    def _reduce(self, value: BlockValue, origins: Origins) -> BlockValue:
        reduction = RowReduction(self, self.node, origins)
        reduction.take(value)
        if self.looped:
            self.close_loop(reduction.starts)
        return reduction.finish()

    def close_loop(self, starts: list[tuple[str, Origins]]) -> None:
        """Put the accumulators and the loop around everything written to the inner writer so far."""
        origins, dim = self.node.origins, self.space.dim("r0_")
        for text, own in starts:
            self.outer.emit(text, own)
        self.outer.emit("for r0_offset in tl.range(0, r0_numel, R0_BLOCK):", origins)
        with self.outer.indent():
            position = "(r0_offset + r0_base).to(tl.int64)" if self.form.wide else "r0_offset + r0_base"
            self.outer.emit(f"r0_index = {position}", origins)
            self._mask(self.outer, dim)
            self._loop_variables(self.outer, dim, self._loop_names_used())
            self.outer.extend(self.inner.lines())
        # What comes after the loop must not go into it.
        self.emission.inner = self.outer
