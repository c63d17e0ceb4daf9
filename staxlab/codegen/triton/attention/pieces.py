"""What the Triton kernels of attention share: places for modifications, tiles of operands, and the finished kernel
(Section 9.10).

A tile of scores has queries along one side and keys along the other, ``m`` and ``n`` in the text; batch ``b`` and head
``h`` are the same in all of it. A modification is replayed into the loop that makes such tiles, between two comments
that name the user's function and its line. What this module makes of a problem depends on the problem alone.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ....attention.problem import AttentionProblem
from ....errors import CodegenError
from ....loops.expressions import Symbol
from ....options import Decision
from ....provenance import NO_ORIGINS, CodeWriter, Line, Origins, file_text
from ...kernel import Kernel, KernelArgument
from ..handler import BlockValue, Emission
from ..operations import write_preamble
from ..space import INT32_MAX, BlockSpace
from ..templates.holes import fill
from ..templates.tile import TileDim
from ..tiling import next_power_of_two
from .handler import ScoreOps

LOG2_E = 1.4426950408889634  # exp(x) = 2 ** (x LOG2_E), and the matrix of exponentials is made of powers of two
LN_2 = 0.6931471805599453
SMALLEST = 16  # of each side of a product of tiles

_TEMPORARY = re.compile(r"\btmp\d+\b")
_ASSIGNED = re.compile(r"^ *(tmp\d+) = ")


@dataclass(frozen=True)
class Place:
    """Where in a kernel a modification is evaluated.

    Lines that vary along ``moving`` go to ``inside``, the body of the loop over tiles; all others to ``before``, in
    front of it. ``masks`` are the dimensions along which a tile may hang over the edge here: the kernel has ``m_mask``
    and ``n_mask`` then. Keys lie along rows where ``transposed``; ``h`` is a vector along the queries where several
    heads share a tile (``packed``). ``zero_fill`` gives lanes without an element a value.
    """

    before: CodeWriter
    inside: CodeWriter
    moving: str = "n"
    masks: frozenset[str] = frozenset()
    transposed: bool = False
    packed: bool = False
    zero_fill: bool = False


def padded(size: int) -> int:
    """The side of a tile that holds ``size`` elements: a power of two, 16 at least."""
    return max(SMALLEST, next_power_of_two(size))


def why_not(problem: AttentionProblem) -> str:
    """Why the Triton templates cannot run a problem; "" if they can."""
    if problem.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"Triton's matrix products take no {problem.dtype}"
    blocks = walked(problem).blocks
    if blocks is not None and (blocks.rows % SMALLEST or blocks.columns % SMALLEST):
        size, tile = f"{blocks.rows} x {blocks.columns}", f"{SMALLEST} x {SMALLEST}"
        return f"a mask with blocks of {blocks.rows} queries: tiles of {tile} do not divide blocks of {size}"
    return ""


def walked(problem: AttentionProblem) -> AttentionProblem:
    """The problem with blocks that tiles divide, where there is but one row or column of them: how large the only one
    is does not matter, as long as everything is inside."""
    blocks = problem.blocks
    if blocks is None:
        return problem
    rows = padded(problem.queries) if blocks.rows % SMALLEST and problem.queries <= blocks.rows else blocks.rows
    columns = padded(problem.keys) if blocks.columns % SMALLEST and problem.keys <= blocks.columns else blocks.columns
    return replace(problem, blocks=replace(blocks, rows=rows, columns=columns))


def require_supported(problem: AttentionProblem) -> None:
    """CodegenError if the templates cannot run a problem."""
    reason = why_not(problem)
    if reason:
        remedy = "a BLOCK_SIZE that is a multiple of 16" if "blocks" in reason else "a dtype of 4 bytes or less"
        raise CodegenError(f"{problem}: {reason}", remedy=remedy)


def score_space(problem: AttentionProblem, symbols: tuple[Symbol, ...], place: Place) -> BlockSpace:
    """The tile of scores as index vectors, for a modification over ``symbols`` (b, h, q, kv)."""
    b, h, q, kv = symbols
    along = {"m": (q, problem.queries), "n": (kv, problem.keys)}
    order = ("n", "m") if place.transposed else ("m", "n")
    dims = tuple(TileDim(p, (along[p][0],), (along[p][1],), axis, 2) for axis, p in enumerate(order))
    space = BlockSpace(dims)
    space.symbol_dims[b] = frozenset()
    space.symbol_dims[h] = frozenset({"m"}) if place.packed else frozenset()
    return space


@dataclass
class KernelWriter:
    """Collects what the lines of one kernel need: arguments, helpers, temporaries.

    ``options`` are what Triton's compiler is told. Products and sums may be contracted, other than in kernels that
    match eager execution bit for bit: the order of the sums in attention is the template's own anyway.
    """

    problem: AttentionProblem
    name: str
    origins: Origins = NO_ORIGINS
    arguments: list[KernelArgument] = field(default_factory=list)
    count: int = 0
    helpers: set[str] = field(default_factory=set)
    library: bool = False
    asserts: bool = False

    def argument(self, name: str, role: str, dtype: torch.dtype) -> str:
        """Add a pointer argument; returns its name."""
        self.arguments.append(KernelArgument(name, name, role, dtype))
        return name

    def captured_arguments(self) -> None:
        """Add a pointer argument for every captured tensor, those of ``score`` first, as ``problem.captured`` has
        them."""
        for modification in (self.problem.score, self.problem.mask):
            for captured in modification.captured if modification else ():
                self.argument(f"{modification.kind}_{captured.name}", "input", captured.dtype)

    # -- modifications ------------------------------------------------------------------------------------------------

    def replay(
        self, modification: Any, place: Place, run: Callable[[ScoreOps], Any], score: BlockValue | None = None,
        what: str = "",
    ) -> Any:  # fmt: skip
        """``run(ops)``, the lines it writes put into ``place`` between comments; returns its result. ``what`` replaces
        the words of the comment ("score_mod", "mask_mod")."""
        outer, inner = CodeWriter(), CodeWriter()
        emission = Emission(
            space=score_space(self.problem, modification.symbols, place),
            outer=outer,
            inner=inner,
            masks=place.masks,
            pointers={c.name: f"{modification.kind}_{c.name}" for c in modification.captured},
            dtypes={c.name: c.dtype for c in modification.captured},
            cache_hint=lambda *_: "",
            zero_fill=place.zero_fill,
            count=self.count,
            helpers=self.helpers,
        )
        relaxed = self.problem.dtype != torch.float32
        result = run(ScoreOps(emission, score, place.moving, modification.body.origins, relaxed=relaxed))
        self.count = emission.count
        self.library, self.asserts = self.library or emission.library, self.asserts or emission.asserts
        words = what or f"{modification.kind}_mod"
        for writer, lines in ((place.before, outer.lines()), (place.inside, inner.lines())):
            if lines:
                writer.emit(f"# {words} {modification.name}, {location_of(modification)}:", modification.body.origins)
                writer.extend(lines)
                writer.emit(f"# end of {modification.name}", modification.body.origins)
        return result

    def modified(self, place: Place, score: str) -> str:
        """Write ``score_mod`` into a place; returns the variable of the new scores, float32 and a whole tile. ``score``
        is the variable of the old ones, which stay as they are without a ``score_mod``."""
        modification = self.problem.score
        if modification is None:
            return score
        value = BlockValue(score, torch.float32, frozenset({"m", "n"}))

        def run(ops: ScoreOps) -> BlockValue:
            return ops.broadcast(ops.to_dtype(modification.replay(ops, value), torch.float32))

        return self.replay(modification, place, run, value).name

    def visible(self, place: Place) -> str:
        """Write ``mask_mod`` and the bounds of the keys into a place; returns what says where a score counts, "" where
        all do."""
        parts = ["n_mask"] if "n" in place.masks else []
        modification = self.problem.mask
        if modification is not None:

            def run(ops: ScoreOps) -> BlockValue:
                return ops.to_dtype(modification.replay(ops, None), torch.bool)

            parts.append(self.replay(modification, place, run).name)
        return " & ".join(parts)

    # -- putting it together ------------------------------------------------------------------------------------------

    def fill(self, template: str, holes: Mapping[str, CodeWriter], names: Mapping[str, object]) -> CodeWriter:
        """A template with its holes filled: a line ``<<hole>>`` becomes the hole's lines, ``{name}`` a word."""
        body = CodeWriter()
        fill(body, template, holes, names, lambda line: self.origins)
        return body

    def kernel(
        self, body: CodeWriter, description: list[str], constants: dict[str, Any], num_warps: int, num_stages: int,
        grid: tuple[int, int, int], *, form: str, decisions: tuple[Decision, ...] = (), bytes_read: int = 0,
        bytes_written: int = 0, operations: int = 0, options: Mapping[str, Any] | None = None,
    ) -> Kernel:  # fmt: skip
        """The finished kernel. ``constants`` are its constexpr parameters, ``body`` its lines."""
        top = CodeWriter()
        wrapped = [part for line in description for part in textwrap.wrap(line, 116)]
        write_preamble(top, wrapped, self.origins, self.library, self.helpers)
        top.emit("@triton.jit")
        top.emit(f"def {self.name}(", self.origins)
        with top.indent():
            for start in range(0, len(self.arguments), 6):
                top.emit(", ".join(a.name for a in self.arguments[start : start + 6]) + ",", self.origins)
            if constants:
                top.emit(", ".join(f"{name}: tl.constexpr" for name in constants) + ",", self.origins)
        top.emit("):", self.origins)
        indented = CodeWriter()
        with indented.indent():
            indented.extend(body.lines())
        told: dict[str, Any] = {"enable_fp_fusion": True}  # spelled out: the default depends on the version
        if self.asserts:
            told |= {"debug": True, "sanitize_overflow": False}
        return Kernel(
            name=self.name,
            language="triton",
            lines=(*top.lines(), *without_unused(indented.lines())),
            arguments=tuple(self.arguments),
            nodes=(),
            device=self.problem.device,
            origins=frozenset().union(*(line.origins for line in indented.lines())),
            launch={
                "form": form,
                "grid": grid,
                "constants": constants,
                "sizes": {},
                "num_warps": num_warps,
                "num_stages": num_stages,
                "options": told | dict(options or {}),
            },  # fmt: skip
            bytes_read=bytes_read,
            bytes_written=bytes_written,
            operations=operations,
            decisions=decisions,
        )


def location_of(modification: Any) -> str:
    """Where a modification is written: "masks.py:12", or the line of a notebook's cell."""
    source = modification.source
    file, line = getattr(source, "file", None), getattr(source, "line", None)
    return f"{file_text(file)}:{line}" if file else str(source)


def without_unused(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """The lines without temporaries that nobody reads: positions that were folded into others."""
    while True:
        mentions: dict[str, int] = {}
        for line in lines:
            for name in _TEMPORARY.findall(line.text.split("  #")[0]):
                mentions[name] = mentions.get(name, 0) + 1
        kept = []
        for line in lines:
            assigned = _ASSIGNED.match(line.text)
            if assigned is None or mentions[assigned[1]] > 1:
                kept.append(line)
        if len(kept) == len(lines):
            return lines
        lines = tuple(kept)


# --- Operands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """One of query, key, value, or a tensor like them, as a kernel reads it: a matrix [``rows``, ``columns``] for every
    batch and head, with ``strides`` in elements of (batch, head, row, column). ``head`` is the variable that numbers
    its heads."""

    pointer: str
    strides: tuple[int, int, int, int]
    rows: int
    columns: int
    dtype: torch.dtype
    head: str = "h"

    @property
    def wide(self) -> bool:
        """Whether subscripts within one matrix, some of them past its edge, need 64 bits."""
        rows, columns = self.rows + 1024, padded(self.columns)
        return rows * abs(self.strides[2]) + columns * abs(self.strides[3]) > INT32_MAX

    @property
    def is_fetchable(self) -> bool:
        """Whether the tensor memory accelerator can fetch tiles of it: elements of a row side by side, rows apart by
        multiples of 16 bytes and a start at one (NVIDIA, 2024, "CUDA C++ Programming Guide": tensor memory access), at
        most 256 to a side."""
        batch, head, row, column = self.strides
        unit = 16 // self.dtype.itemsize
        return column == 1 and row > 0 and not any(step % unit for step in (batch, head, row)) and self.columns <= 256

    def base(self) -> str:
        """The pointer to the matrix of batch ``b`` and head ``self.head``."""
        batch, head, *_ = self.strides
        return f"{self.pointer} + b.to(tl.int64) * {batch} + {self.head}.to(tl.int64) * {head}"

    def offsets(self, row: str, column: str) -> str:
        """The subscripts of the elements at these index vectors."""
        wide = ".to(tl.int64)" if self.wide else ""
        steps = ((row, self.strides[2]), (column, self.strides[3]))
        return " + ".join(name + wide if step == 1 else f"{name}{wide} * {step}" for name, step in steps)

    def load(self, base: str, row: str, column: str, masks: list[str]) -> str:
        """The load of a tile, with zeros where a mask says that there is nothing."""
        mask = f", {' & '.join(masks)}, other=0.0" if masks else ""
        return f"tl.load({base} + ({self.offsets(row, column)}){mask})"

    def descriptor(self, base: str, block_rows: str, block_columns: str) -> str:
        """What tells the accelerator of the matrix; past its edges it delivers zeros."""
        shape = f"[{self.rows}, {self.columns}], [{self.strides[2]}, 1], [{block_rows}, {block_columns}]"
        return f"tl.make_tensor_descriptor({base}, {shape})"


def operands(problem: AttentionProblem) -> tuple[Operand, Operand, Operand]:
    """Query, key and value of a problem."""
    dtype = problem.dtype
    return (
        Operand("query", problem.query_strides, problem.queries, problem.head_size, dtype, "h"),
        Operand("key", problem.key_strides, problem.keys, problem.head_size, dtype, "key_head"),
        Operand("value", problem.value_strides, problem.keys, problem.value_size, dtype, "key_head"),
    )


def precision_of(problem: AttentionProblem) -> str:
    """What products of float32 are told: no rounding to 10 bits of mantissa."""
    return ', input_precision="ieee"' if problem.dtype == torch.float32 else ""


def list_row(problem: AttentionProblem, blocks: int, row: str, head: str = "h") -> str:
    """Which row of a block mask's lists belongs to batch ``b``, head ``head`` and the block number ``row`` of
    ``blocks``: lists do not vary along a batch or head that the mask does not name."""
    geometry = problem.blocks
    assert geometry is not None
    parts = []
    heads = problem.query_heads if geometry.head_varies else 1
    if geometry.batch_varies:
        parts.append(f"b * {heads * blocks}" if heads * blocks > 1 else "b")
    if geometry.head_varies:
        parts.append(f"{head} * {blocks}" if blocks > 1 else head)
    return " + ".join([*parts, row])
