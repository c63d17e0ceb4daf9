"""What the C++ kernels of attention share: sizes of tiles, and modifications as loops over keys (Section 9.10).

A kernel is written around *strips*: a few rows of queries against a tile of keys. :func:`plan_attention` says how large
either is, which is a question of registers (a block of sums must fit) and of the nearest cache (a tile of keys, one of
values and the scores of a strip must). :class:`Parts` turns ``score_mod`` and ``mask_mod`` into local functions of a
row: what depends on batch, head and query alone is computed once per row, the rest for a vector of neighbouring keys,
the division of labour that every kernel of this generator has (:mod:`.values`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...attention.problem import AttentionProblem
from ...errors import CodegenError, OptionError
from ...loops.expressions import Symbol
from ...options import Decision
from ...provenance import CodeWriter, file_text
from .attention_tiles import matrix_unit
from .types import ELEMENT, stored_name
from .unit import INSTRUCTION_SETS
from .values import CppOps, CppValue, Scope

#: Rows and vectors of a block of sums. With a vector of the other operand and one element broadcast they fill the
#: registers: 32 with AVX-512 and NEON, 16 with AVX2. A block of 24 sums also hides the latency of a multiply-add.
REGISTER_BLOCK = {"avx512": (6, 4), "neon": (6, 4), "avx2": (6, 2), "scalar": (4, 2)}

#: Keys in a tile, in vectors: a panel of keys and a tile of values of 64 components then are 16 KiB each.
TILE_VECTORS = {"avx512": 4, "neon": 8, "avx2": 4, "scalar": 16}

TILE_ROWS = 128  # queries of a task, about so many at most; twice as many where there are enough tasks
SPLIT_TASKS = 32  # with fewer tasks the keys are divided, too: a constant, so that results do not depend on threads
SPLIT_KEYS = 512  # a piece of the keys has at least so many


@dataclass(frozen=True)
class AttentionPlan:
    """Sizes of tiles, in elements. ``rows`` by ``vectors`` vectors of ``lanes`` are a block of sums in registers;
    ``tile_rows`` queries are a task and ``tile_keys`` keys a tile. ``shared_panels``: keys are turned over (and values
    converted) once for all tasks. ``joined``: the heads of a group are rows of one task. ``pieces`` of ``piece`` keys
    are attended to apart and merged. ``matrix_unit``: products are tiles of 16 rows of bfloat16."""

    lanes: int
    rows: int
    vectors: int
    tile_rows: int
    tile_keys: int
    shared_panels: bool
    joined: bool
    pieces: int
    piece: int
    matrix_unit: bool = False
    decisions: tuple[Decision, ...] = ()


def padded(count: int, step: int) -> int:
    """The next multiple of ``step``."""
    return -(-count // step) * step


def plan_attention(
    problem: AttentionProblem, configuration: dict[str, int] | None = None, forward: bool = True
) -> AttentionPlan:
    """Tiles for a problem on a CPU; ``configuration`` may fix BLOCK_M, BLOCK_N and SPLITS. The backward pass neither
    joins heads nor has tasks of queries, and always turns keys over for all tasks.

    Raises CodegenError for a device that is no CPU, OptionError for sizes that are not positive.
    """
    device = problem.device
    if device.kind != "cpu" or device.instruction_set not in INSTRUCTION_SETS:
        raise CodegenError(f"no C++ generator for device {device.name!r}", remedy="use a CPU, or the Triton templates")
    given = dict(configuration or {})
    if wrong := {name: value for name, value in given.items() if value is not None and value < 1}:
        name, value = next(iter(wrong.items()))
        raise OptionError(f"{name} is {value}, which is no size", remedy="give a positive number, or leave it out")
    wide = device.instruction_set
    lanes = 1 if wide == "scalar" else device.vector_bytes // problem.accumulator.itemsize
    rows, vectors = REGISTER_BLOCK[wide]
    blocks = problem.blocks
    columns = min(blocks.columns, problem.keys) if blocks else problem.keys
    tile_keys = padded(min(given.get("BLOCK_N") or TILE_VECTORS[wide] * lanes, max(columns, 1)), max(lanes, 4))
    joined = forward and _may_join(problem)
    together = problem.queries * (problem.group if joined else 1)
    rows_of_block = min(blocks.rows, problem.queries) if blocks and not joined else together
    large = problem.batch * problem.query_heads * -(-rows_of_block // (2 * TILE_ROWS)) >= SPLIT_TASKS
    wanted = given.get("BLOCK_M") or (2 * TILE_ROWS if large and forward else TILE_ROWS)
    tiles = max(1, round(rows_of_block / wanted))
    tile_rows = max(1, -(-rows_of_block // tiles))
    unit = matrix_unit(problem, tile_rows) if forward else (False, "the backward pass computes in float32")
    rows = 16 if unit[0] else min(rows, tile_rows)
    if unit[0]:
        tile_keys = padded(tile_keys, 32)
    row_tiles = -(-together // tile_rows)
    tasks = problem.batch * problem.key_heads * (1 if joined else problem.group) * row_tiles
    readers = row_tiles * (1 if joined else problem.group)
    if not forward:
        tasks = problem.batch * problem.key_heads
    pieces, piece = _pieces(problem, tasks, tile_keys, given.get("SPLITS"), SPLIT_KEYS if forward else TILE_ROWS)
    shared = readers > 1 or not forward
    subject = "forward" if forward else "backward"
    facts = (("tasks", tasks), ("rows", together), ("keys", problem.keys))
    decisions = (
        Decision("attention-tile", subject, (tile_rows, tile_keys), _tile_reason(problem, tile_rows), inputs=facts),
        Decision(
            "attention-pieces", subject, pieces,
            "enough tasks without dividing the keys" if pieces == 1 else "few tasks: the keys are divided and merged",
            inputs=facts,
        ),
        Decision(
            "attention-panels", subject, shared,
            f"{readers} tasks read each tile of keys: it is turned over once for all" if shared
            else "each tile of keys is read by one task, which turns it over for itself", (True, False),
        ),
        Decision("attention-matrix-unit", subject, *unit, (True, False)),
    )  # fmt: skip
    return AttentionPlan(
        lanes, rows, vectors, tile_rows, tile_keys, shared, joined, pieces, piece, unit[0], decisions
    )  # fmt: skip


def _tile_reason(problem: AttentionProblem, tile_rows: int) -> str:
    if problem.blocks and tile_rows < problem.queries:
        return "rows of a task lie in one row of blocks of the mask, and scores of a strip in the nearest cache"
    return "each tile of keys is read once for these rows, and scores of a strip stay in the nearest cache"


def _may_join(problem: AttentionProblem) -> bool:
    """Whether the heads of a group can be rows of one task, so that keys are read once for all of them: with few
    queries, and where all these rows visit the same blocks."""
    if problem.group == 1 or problem.queries * problem.group > TILE_ROWS:
        return False
    blocks = problem.blocks
    return blocks is None or (not blocks.head_varies and problem.queries <= blocks.rows)


def _pieces(problem: AttentionProblem, tasks: int, tile_keys: int, given: int | None, least: int) -> tuple[int, int]:
    """How many pieces the keys are divided into, and the keys in a piece (``least`` or more, unless that is ``given``):
    whole tiles, or whole blocks of the mask."""
    unit = problem.blocks.columns if problem.blocks else tile_keys
    wanted = given or min(-(-SPLIT_TASKS // max(tasks, 1)), problem.keys // least)
    if wanted <= 1:
        return 1, max(problem.keys, 1)
    piece = padded(-(-problem.keys // wanted), unit)
    return -(-problem.keys // piece), piece


class Workspace:
    """Scratch arrays of a kernel: keys turned over, values converted, states of pieces."""

    def __init__(self, problem: AttentionProblem, plan: AttentionPlan):
        self.keys, self.head_size = problem.keys, problem.head_size
        self.depth = padded(problem.head_size, 32 if plan.matrix_unit else plan.lanes)
        self.width = padded(problem.value_size, plan.lanes)
        self.columns = min(problem.blocks.columns, problem.keys) if problem.blocks else problem.keys
        self.block_tiles = -(-self.columns // plan.tile_keys)
        self.panels = -(-problem.keys // self.columns) * self.block_tiles
        self.values_in_place = in_place(problem, problem.value_strides, problem.value_size, plan)
        heads = problem.batch * problem.key_heads
        arrays = []
        if plan.shared_panels:
            arrays.append(("panels", heads * self.panels * self.panel_size(plan)))
            if plan.matrix_unit:
                arrays.append(("values", heads * self.panels * plan.tile_keys // 2 * self.width))
            elif not self.values_in_place:
                arrays.append(("values", heads * problem.keys * self.width))
        if plan.pieces > 1:
            rows = problem.batch * problem.query_heads * problem.queries
            arrays.append(("states", plan.pieces * rows * (self.width + 2)))
        self.arrays = tuple(arrays)

    def panel_size(self, plan: AttentionPlan) -> int:
        """Elements of a tile of keys that is turned over; 32-bit words of two components for a matrix unit."""
        return plan.tile_keys * (self.depth // 2 if plan.matrix_unit else self.head_size)

    def tail(self, plan: AttentionPlan) -> int:
        """The columns of narrow tiles at the end of a block, or of all keys, in whole vectors; 0 if there are none that
        are worth code of their own."""
        left = max(self.columns % plan.tile_keys, self.keys % self.columns % plan.tile_keys)
        tail = padded(left, plan.lanes)
        return tail if 0 < tail <= plan.tile_keys // 2 and not plan.matrix_unit else 0


def in_place(problem: AttentionProblem, strides: tuple[int, ...], size: int, plan: AttentionPlan) -> bool:
    """Whether rows of a tensor can be read as vectors where they are: no conversion, no gap, nothing left over."""
    return problem.dtype == problem.accumulator and strides[3] == 1 and size % plan.lanes == 0 and size > 0


def moved(problem: AttentionProblem, plan: AttentionPlan, workspace: Workspace) -> tuple[tuple[str, int], ...]:
    """The bytes of :meth:`AttentionKernel.traffic` of a forward pass."""
    size, wide = problem.dtype.itemsize, problem.accumulator.itemsize
    rows = problem.batch * problem.query_heads * problem.queries
    keys = problem.batch * problem.key_heads * problem.keys
    per_key = problem.head_size + problem.value_size
    together = problem.queries * (problem.group if plan.joined else 1)
    readers = -(-together // plan.tile_rows) * (1 if plan.joined else problem.group)
    captured = sum(tensor.dtype.itemsize * math.prod(tensor.shape) for tensor in problem.captured)
    return (
        ("inputs", size * (rows * problem.head_size + keys * per_key) + captured),
        ("results", size * rows * problem.value_size + wide * rows),
        ("workspace", wide * sum(count for _, count in workspace.arrays)),
        ("tiles", (wide if plan.shared_panels else size) * readers * keys * per_key),
    )


@dataclass
class Parts:
    """The scope of one kernel: its writer, and what its modifications ask of the preamble."""

    problem: AttentionProblem
    plan: AttentionPlan
    writer: CodeWriter = field(default_factory=CodeWriter)
    vector_types: dict[str, tuple[str, int]] = field(default_factory=dict)
    imports: dict[str, tuple[str, int]] = field(default_factory=dict)
    checks: list[tuple[str, str]] = field(default_factory=list)
    counter: int = 0
    #: Line numbers of the writer's text that come from a modification: (first, behind the last, "score_mod").
    passages: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def vector(self) -> str:
        """The type of a vector of scores."""
        return self.scope().vector_type(self.problem.accumulator) if self.plan.lanes > 1 else self.element

    @property
    def element(self) -> str:
        return ELEMENT[self.problem.accumulator]

    @property
    def word(self) -> str:
        """The element of masks of scores: as wide as a score."""
        return "i64" if self.problem.accumulator == torch.float64 else "i32"

    @property
    def stored(self) -> str:
        return stored_name(self.problem.dtype, "the query")

    def scope(self, modification: Any = None) -> Scope:
        """Where the lines of a modification go: the first writer is that of a row, the second that of a vector."""
        symbols = modification.symbols if modification is not None else ()
        vectorised = self.plan.lanes > 1 and symbols
        return Scope(
            vector=symbols[3] if vectorised else None, lanes=self.plan.lanes, writers=[CodeWriter(), CodeWriter()],
            level=dict.fromkeys(symbols[:3], 0), neon=self.problem.device.instruction_set == "neon",
            arguments={name: (name, dtype) for name, dtype in self.captured()}, vector_types=self.vector_types,
            imports=self.imports, checks=self.checks, counter=self.counter,
        )  # fmt: skip

    def handler(self, scope: Scope) -> CppOps:
        return CppOps(scope, "lanes" if scope.vector is not None else None)

    def emit(self, text: str) -> None:
        self.writer.emit(text)

    @contextmanager
    def passage(self, modification: Any, what: str) -> Iterator[None]:
        """Lines of a modification, between two comments that name it and where the user wrote it."""
        source = modification.source
        where = f" ({file_text(source.file)}:{source.line})" if source is not None else ""
        first, origins = len(self.writer.lines()), modification.body.origins
        self.writer.emit(f"// {what} {comment_text(modification.name + where)}", origins)
        yield
        self.writer.emit(f"// end of {what} {comment_text(modification.name)}", origins)
        self.passages.append((first, len(self.writer.lines()), what))

    def exponential(self) -> str:
        """The text of a function object that takes the exponential of a vector of scores."""
        symbol = Symbol("key", 0, 0)
        scope = self.scope()
        scope.vector = symbol if self.plan.lanes > 1 else None
        value = CppValue("x", self.problem.accumulator, self.plan.lanes > 1, frozenset({symbol}))
        result = self.handler(scope).apply("exp", value)
        line = scope.writers[-1].lines()[-1].text
        call = line.split(" = ", 1)[1].split(";")[0]
        assert line.startswith(f"const {self.vector} {result.text}")
        always = "__attribute__((always_inline))"
        plain = f"[]({self.vector} x) {always} {{ return {call}; }}"
        return f"""[](V x) {always} {{
    return without_subnormals(x, {plain});
}}"""

    def write_score(self) -> None:
        """``score_row``: score_mod for ``count`` keys of one row, in place."""
        score = self.problem.score
        if score is None:
            return
        scope = self.scope(score)
        handler = self.handler(scope)
        value = CppValue("score", self.problem.accumulator, scope.vector is not None, frozenset(score.symbols))
        result = score.replay(handler, value)
        self.counter = scope.counter
        with self.passage(score, "score_mod"):
            self.row_function(
                "score_row", f"{self.element}* row", scope, f"{self.vector} score", self.vector,
                handler.as_vector(result), f"{self.vector}", "whole<{V}>(row + k)", "store_vector(row + k, {value});",
            )  # fmt: skip

    def write_mask(self) -> None:
        """``visible_row``: words that are -1 where mask_mod lets a key of one row be seen, 0 elsewhere."""
        mask = self.problem.mask
        if mask is None or self.problem.blocks is None:
            return
        scope = self.scope(mask)
        handler = self.handler(scope)
        result = mask.replay(handler, None, len(self.problem.score.captured) if self.problem.score else 0)
        self.counter = scope.counter
        words = self.words
        if scope.vector is not None:
            text = f"as_mask<{words}>({result.text})"
        else:
            text = f"({self.word})({result.text} ? -1 : 0)"
        parameters = f"{self.word}* row, {words}& some, {words}& every"
        with self.passage(mask, "mask_mod"):
            self.row_function(
                "visible_row", parameters, scope, "", words, text, words, "",
                "store_vector(row + k, {value});\nsome = some | {value};\nevery = every & {value};",
            )  # fmt: skip

    @property
    def words(self) -> str:
        """The type of a vector of words."""
        if self.plan.lanes == 1:
            return self.word
        integer = torch.int64 if self.word == "i64" else torch.int32
        return self.scope().vector_type(integer)

    def row_function(
        self, name: str, parameters: str, scope: Scope, given: str, kind: str, result: str,
        made: str, read: str, write: str,
    ) -> None:  # fmt: skip
        """A local function over one row of a strip: the lines of the row, those of a vector of keys, and the loop."""
        always = "__attribute__((always_inline))"
        self.emit(f"const auto {name} = [&](i64 b, i64 h, i64 q, i64 first_key, i64 count,")
        self.emit(f"        {parameters}) {always} {{")
        with self.writer.indent():
            self.writer.extend(scope.writers[0].lines())
            comma = f", {given}" if given else ""
            self.emit(f"const auto each = [&](i64 kv{comma}, auto lanes) {always} -> {kind} {{")
            with self.writer.indent():
                self.writer.extend(scope.writers[1].lines())
                self.emit(f"return {result};")
            self.emit("};")
            taken = f", {read.format(V=self.vector)}" if read else ""
            self.emit("i64 k = 0;")
            self.emit(f"for (; k + {self.plan.lanes} <= count; k += {self.plan.lanes}) {{")
            with self.writer.indent():
                self.emit(f"const {made} made = each(first_key + k{taken}, all_lanes);")
                self.emit(write.format(value="made"))
            self.emit("}")
            if self.plan.lanes > 1:
                self.emit("if (k < count) {")
                with self.writer.indent():
                    self.emit(f"const {made} made = each(first_key + k{taken}, lanes_within<mask>(count - k));")
                    if name == "visible_row":
                        self.emit(f"const {made} there = made & lanes_within<{made}>(count - k).mask;")
                        self.emit("store_vector(row + k, there);\nsome = some | there;\nevery = every & there;")
                    else:
                        self.emit(write.format(value="made"))
                self.emit("}")
        self.emit("};")

    def captured(self) -> list[tuple[str, torch.dtype]]:
        """Captured tensors as pointer arguments, those of score_mod first. CodegenError for a dtype that CPU kernels do
        not handle."""
        tensors = [(f"captured{number}", tensor) for number, tensor in enumerate(self.problem.captured)]
        for _, tensor in tensors:
            stored_name(tensor.dtype, f"the tensor {tensor.path!r} that a modification reads")
        return [(name, tensor.dtype) for name, tensor in tensors]

    def preamble(self) -> list[str]:
        """Types, and the vector functions that are called."""
        header = "staxlab_amx.h" if self.plan.matrix_unit else "staxlab_attention.h"
        lines = [f'#include "{header}"', "using namespace stax;"]
        vector, words = self.vector, self.words
        for name, (element, lanes) in sorted(self.vector_types.items()):
            lines.append(f"using {name} = Vec<{element}, {lanes}>;")
        if self.plan.lanes > 1:
            lines.append(f"using mask = {words};")
        lines += [f"using V = {vector};  // a vector of scores", f"using W = {words};  // which of them are visible"]
        if self.imports:
            lines.append("// Vector functions of SLEEF, found in libtorch_cpu when the kernel is loaded.")
        for symbol, (kind, arity) in self.imports.items():
            parameters = ", ".join([kind] * arity)
            lines.append(f'extern "C" {{ {kind} (*{symbol.replace("Sleef_", "sleef_")})({parameters}); }}')
        return lines


def comment_text(text: Any) -> str:
    """Text of the user's for a comment of one line: no line break and no backslash at its end can leave it."""
    return " ".join(str(text).split()).replace("\\", "/").replace('"', "'")
