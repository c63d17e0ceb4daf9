"""Attention in C++, forward: tiles of keys under strips of queries, with the modifications in between (Section 9.10).

A task is a tile of queries of one head. It walks along the tiles of keys that its row of blocks visits, and for every
strip of a few queries

1. evaluates ``mask_mod`` where the block is partial, and goes on if nothing is visible: the triangle on the diagonal of
   a causal mask costs half a tile, not a whole one;
2. multiplies the queries by the keys, a block of sums in registers; keys were turned over beforehand, so that a vector
   holds one component of neighbouring keys;
3. runs ``score_mod``, gives hidden positions -inf, and takes the scores into the state (m, l, acc) of the rows;
4. multiplies the exponentials by the values.

The scores of a strip are 1.5 KiB and never leave the nearest cache. With few tasks the keys are divided as well, and
the states of the pieces are merged in order (the monoid of Section 9.10; decoding is the case of one query). How many
pieces there are depends on shapes alone, so results are the same bit for bit on any number of threads.

Half precision is converted to float32 tile by tile. The exponentials are *not* rounded to it before they meet the
values: on a GPU the tensor cores ask for that, here nothing does, and the result is closer to the exact one without.
The exception is bfloat16 on a processor that multiplies tiles of it (:mod:`.attention_tiles`).

Sources: Milakov and Gimelshein, 2018, Online normalizer calculation for softmax; Dao, Fu, Ermon, Rudra and Ré, 2022,
FlashAttention; Goto and van de Geijn, 2008, Anatomy of high-performance matrix multiplication (turned-over panels and
blocks of sums in registers).
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...attention.problem import AttentionProblem
from ...provenance import Line
from ..kernel import Kernel, KernelArgument
from .attention_parts import AttentionPlan, Parts, Workspace, comment_text, moved, plan_attention
from .attention_tiles import PAIRS, SCORES_OF_TILES, VALUES_OF_TILES, is_power_of_two, tiles_of
from .types import ELEMENT, STORED, literal
from .unit import compiler_flags

#: The lists of a block mask that the kernels read, as they are called there.
ROW_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


@dataclass(frozen=True)
class AttentionKernel:
    """A kernel's text with what calling it takes.

    ``passages`` are the lines (first, behind the last, what) that stem from ``score_mod``, ``mask_mod`` or the
    derivative of the former. ``workspace`` names scratch arrays and their sizes in elements of the accumulator's type,
    ``lists`` those of the block mask that are read. ``gradients`` are captured tensors that get one, by number, with
    the elements of each of their ``slots``.
    """

    kernel: Kernel
    plan: AttentionPlan
    passages: tuple[tuple[int, int, str], ...]
    workspace: tuple[tuple[str, int], ...]
    lists: tuple[str, ...]
    moved: tuple[tuple[str, int], ...] = ()
    gradients: tuple[tuple[int, int], ...] = ()
    slots: int = 1

    @property
    def source(self) -> str:
        return self.kernel.source

    @property
    def listing(self) -> tuple[Line, ...]:
        """Every line, with the nodes of the modifications' graphs that it stems from."""
        return self.kernel.lines

    def whose(self, line: int) -> str:
        """What a line of the listing (from 0) stems from: "score_mod", "mask_mod", or "" for the template."""
        return next((what for first, stop, what in self.passages if first <= line < stop), "")

    def traffic(self) -> dict[str, int]:
        """Bytes by what they are: ``inputs`` and ``results`` if each element is moved once, the ``workspace`` written
        once, and ``tiles``, what tasks read of keys and values if every tile of them is visited, which the caches serve
        as far as the keys of a head fit into them."""
        return dict(self.moved)

    def __str__(self) -> str:
        return self.source

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ...view import mimebundle

        return mimebundle(self.kernel)


def forward_source(problem: AttentionProblem, configuration: dict[str, int] | None = None) -> AttentionKernel:
    """The forward kernel of a problem that is not empty.

    Its arguments are pointers: query, key, value, the lists of the block mask (if there is one), the captured tensors,
    the workspace, the result and the logarithm of the sum of exponentials. Raises CodegenError for a dtype or device
    that C++ kernels do not handle, OptionError for a size in ``configuration`` that is none.
    """
    plan = plan_attention(problem, configuration)
    parts = Parts(problem, plan)
    workspace = Workspace(problem, plan)
    parts.emit(HEAD)
    with parts.writer.indent():
        write_surroundings(parts)
        write_panels(parts, workspace)
        parts.emit(f"const auto exponential = {parts.exponential()};")
        parts.write_score()
        parts.write_mask()
        parts.emit(_task(parts, workspace))
        if plan.pieces > 1:
            parts.emit(_MERGE.replace("{log}", log_of(problem)))
        parts.emit("return done ? 0 : 1;  // 1: no memory")
    parts.emit("}")
    lists = ROW_LISTS if problem.blocks else ()
    arguments = [
        *((name, problem.dtype, "input") for name in ("query_tensor", "key_tensor", "value_tensor")),
        *((name, torch.int32, "input") for name in lists),
        *((name, dtype, "input") for name, dtype in parts.captured()),
        *((name, problem.accumulator, "inout") for name, _ in workspace.arrays),
        ("out", problem.dtype, "output"),
        ("lse", problem.accumulator, "output"),
    ]
    made = finish(parts, "attention_forward", arguments, workspace.arrays, lists, constants(parts, workspace))
    account = moved(problem, plan, workspace)
    counted = replace(made.kernel, bytes_read=account[0][1], bytes_written=account[1][1])
    return replace(made, kernel=counted, moved=account)


def constants(parts: Parts, workspace: Workspace) -> dict[str, int]:
    """The numbers that the text names, in the order in which they are declared."""
    problem, plan = parts.problem, parts.plan
    named = {
        "batch": problem.batch, "query_heads": problem.query_heads, "key_heads": problem.key_heads,
        "group": problem.group, "queries": problem.queries, "keys": problem.keys, "head_size": problem.head_size,
        "value_size": problem.value_size, "depth": workspace.depth, "width": workspace.width, "lanes": plan.lanes,
        "strip": plan.rows, "vectors": plan.vectors, "tile_rows": plan.tile_rows, "tile_keys": plan.tile_keys,
        "columns": workspace.columns, "block_tiles": workspace.block_tiles, "panels_of_head": workspace.panels,
    }  # fmt: skip
    for name, strides in (("query", problem.query_strides), ("key", problem.key_strides),
                          ("value", problem.value_strides), ("out", problem.output_strides)):  # fmt: skip
        named |= {f"{name}_{what}": s for what, s in zip(("batch", "head", "row", "step"), strides, strict=True)}
    if problem.blocks:
        rows, columns = problem.blocks.counts(problem.queries, problem.keys)
        named |= {
            "block_rows": problem.blocks.rows, "mask_rows": rows, "mask_columns": columns,
            "mask_batch": int(problem.blocks.batch_varies),
            "mask_heads": problem.query_heads if problem.blocks.head_varies else 1,
        }  # fmt: skip
    return named


#: Numbers that are arguments of templates as ints.
INTS = ("strip", "vectors", "key_strip")

#: Stands for the head of the entry point until its arguments are known.
HEAD = "entry point"


def write_surroundings(parts: Parts) -> None:
    """Constants that are no whole numbers."""
    problem = parts.problem
    element = parts.element
    parts.emit(f"constexpr {element} scale = {literal(problem.scale, problem.accumulator)};")
    parts.emit(f"constexpr {element} minus_infinity = {literal(float('-inf'), problem.accumulator)};")


def write_panels(parts: Parts, workspace: Workspace) -> None:
    """Keys turned over, and values converted, once for all tasks; the backward pass turns values over as well."""
    if not parts.plan.shared_panels:
        parts.emit("bool done = true;")
        return
    parts.emit(
        """// Keys turned over: panel[tile_keys*d + j] is component d of key j of a tile.
bool done = share(batch * key_heads * panels_of_head, 0, [&](i64 task, char*) {
    const i64 number = task % panels_of_head, b = task / panels_of_head / key_heads;
    const i64 g = task / panels_of_head % key_heads;
    const i64 first = columns * (number / block_tiles) + tile_keys * (number % block_tiles);
    const i64 count = least(tile_keys, least(keys, columns * (number / block_tiles + 1)) - first);
    if (count <= 0) return;
    """
        + (PAIRS if parts.plan.matrix_unit else _PANEL)
    )
    if "values" in dict(workspace.arrays) and not parts.plan.matrix_unit:
        parts.emit("""    copy_rows<V, width, value_size, value_row, value_step>(
        values + width * (keys * (key_heads * b + g) + first),
        value_tensor + value_batch * b + value_head * g + value_row * first, count, 1);""")
    if "value_panels" in dict(workspace.arrays):
        parts.emit("""    turn_over<V, tile_keys, value_size, value_row, value_step>(
        value_panels + tile_keys * value_size * task,
        value_tensor + value_batch * b + value_head * g + value_row * first, count);""")
    if "key_rows" in dict(workspace.arrays):
        parts.emit("""    copy_rows<V, depth, head_size, key_row, key_step>(
        key_rows + depth * (keys * (key_heads * b + g) + first),
        key_tensor + key_batch * b + key_head * g + key_row * first, count, 1);""")
    parts.emit("});")
    parts.emit("if (!done) return 1;")


_PANEL = """turn_over<V, tile_keys, head_size, key_row, key_step>(
        panels + tile_keys * head_size * task,
        key_tensor + key_batch * b + key_head * g + key_row * first, count);"""


def _task(parts: Parts, workspace: Workspace) -> str:
    """The loop over tasks: a tile of queries of a head (or of all heads of a group), and one piece of the keys."""
    problem, plan = parts.problem, parts.plan
    T = parts.element
    masked = problem.blocks is not None
    partial = masked and problem.mask is not None
    lines: list[str] = []
    add = lines.append
    if plan.joined:
        add("constexpr i64 heads = key_heads, all_rows = group * queries;  // the queries of all heads of a group")
        add("const auto head_of = [&](i64 g, i64 row) { return group * g + row / queries; };")
        add("const auto query_of = [&](i64 row) { return row % queries; };")
    else:
        add("constexpr i64 heads = query_heads, all_rows = queries;")
        add("const auto head_of = [&](i64 h, i64) { return h; };")
        add("const auto query_of = [&](i64 row) { return row; };")
    rows_of_block = "block_rows" if masked and not plan.joined else "all_rows"
    add(f"constexpr i64 tiles_of_block = (least({rows_of_block}, all_rows) + tile_rows - 1) / tile_rows;")
    add(f"constexpr i64 row_blocks = (all_rows + {rows_of_block} - 1) / {rows_of_block};")
    add("constexpr i64 row_tiles = row_blocks * tiles_of_block;")
    add("constexpr i64 room = (tile_rows + strip - 1) / strip * strip;  // whole strips")
    add(f"constexpr i64 pieces = {plan.pieces}, piece = {plan.piece};")
    scratch = "room * (depth + width + lanes + 1) + 2 * tile_keys * strip"
    if not plan.shared_panels:
        scratch += " + tile_keys * (depth + width)"
    if plan.matrix_unit:
        scratch = scratch.replace("2 * tile_keys", "3 * tile_keys")
    add(f"constexpr i64 scratch_elements = {scratch} + lanes + strip;")
    add(f"constexpr i64 scratch_bytes = sizeof({T}) * scratch_elements + 64 * 12;  // each array on its own lines")
    add("done = share(batch * heads * row_tiles * pieces, scratch_bytes, [&](i64 task, char* memory) {")
    body: list[str] = [
        "const i64 part = task % pieces;",
        "const i64 tile = row_tiles - 1 - task / pieces % row_tiles;  // the long rows of a causal mask come first",
        "const i64 b = task / pieces / row_tiles / heads, hg = task / pieces / row_tiles % heads;",
        "const i64 row_block = tile / tiles_of_block;",
        f"const i64 first = {rows_of_block} * row_block + tile_rows * (tile % tiles_of_block);",
        f"const i64 rows = least(tile_rows, least(all_rows, {rows_of_block} * (row_block + 1)) - first);",
        "if (rows <= 0) return;",
        f"const i64 g = {'hg' if plan.joined else 'hg / group'};",
        "Scratch scratch{memory};",
        "{0}* const q_tile = scratch.take<{0}>(room * depth);".format("bf16" if plan.matrix_unit else T),
        f"{T}* const acc = scratch.take<{T}>(room * width);",
        f"{T}* const l = scratch.take<{T}>(room * lanes);",
        f"{T}* const m = scratch.take<{T}>(room);",
        f"{T}* const scores = scratch.take<{T}>(tile_keys * strip);",
        f"{T}* const factor = scratch.take<{T}>(strip + lanes);",
    ]
    if partial:
        body.append(f"{parts.word}* const visible = scratch.take<{parts.word}>(tile_keys * strip);")
    if plan.matrix_unit:
        body.append("bf16* const halves = scratch.take<bf16>(tile_keys * strip);  // of the probabilities")
        if not plan.shared_panels:
            body.append("u32* const panel = scratch.take<u32>(tile_keys * depth / 2);")
            body.append("u32* const value_tile = scratch.take<u32>(tile_keys * width / 2);")
    elif not plan.shared_panels:
        body.append(f"{T}* const panel = scratch.take<{T}>(tile_keys * head_size);")
        if not workspace.values_in_place:
            body.append(f"{T}* const value_tile = scratch.take<{T}>(tile_keys * width);")
    if plan.matrix_unit:
        body.append("MatrixUnit unit;")
    clear = "clear((u16*)q_tile" if plan.matrix_unit else "clear(q_tile"
    body += [
        f"{clear} + depth * rows, depth * (room - rows));",
        "clear(acc, room * width);",
        "clear(l, room * lanes);",
        "for (i64 r = 0; r < room; ++r) m[r] = minus_infinity;",
    ]
    exact = not plan.matrix_unit or is_power_of_two(problem.scale)
    factor = "scale" if exact else "1"  # a bfloat16 is multiplied by a power of two without rounding
    copy = "copy_rows<V, depth, head_size, query_row, query_step>"
    if plan.matrix_unit:
        copy = "copy_halves<V, depth, head_size, query_row>"
    if plan.joined:
        body += [
            "for (i64 r = 0; r < rows; ++r)",
            f"    {copy}(",
            "        q_tile + depth * r, query_tensor + query_batch * b + query_head * head_of(hg, first + r)",
            f"            + query_row * query_of(first + r), 1, {factor});",
        ]
    else:
        body += [
            f"{copy}(",
            f"    q_tile, query_tensor + query_batch * b + query_head * hg + query_row * first, rows, {factor});",
        ]
    body += ["// One tile of keys; mask_mod decides there if the block is partial.",
             "const auto visit = [&](i64 first_key, i64 count, i64 number, auto partial) {"]  # fmt: skip
    body += ["    " + line for line in _visit(parts, workspace, partial)]
    body.append("};")
    body += _walk(parts)
    body += _close(parts)
    lines += ["    " + line for line in body]
    lines.append("});")
    return "\n".join(lines)


def _visit(parts: Parts, workspace: Workspace, partial: bool) -> list[str]:
    problem, plan = parts.problem, parts.plan
    T = parts.element
    lines: list[str] = []
    row = "width"
    if plan.matrix_unit:
        lines += tiles_of(plan)
    elif plan.shared_panels:
        lines.append(f"const {T}* const panel = panels + tile_keys * head_size * "
                     "(panels_of_head * (key_heads * b + g) + number);")  # fmt: skip
    else:
        lines += [
            "turn_over<V, tile_keys, head_size, key_row, key_step>(",
            "    panel, key_tensor + key_batch * b + key_head * g + key_row * first_key, count);",
        ]
    if plan.matrix_unit:
        pass
    elif workspace.values_in_place:
        row = "value_row"
        at = "value_batch * b + value_head * g + value_row * first_key"
        lines.append(f"const {T}* const v_tile = value_tensor + {at};")
    elif plan.shared_panels:
        lines.append(f"const {T}* const v_tile = values + width * (keys * (key_heads * b + g) + first_key);")
    else:
        lines += [
            "copy_rows<V, width, value_size, value_row, value_step>(",
            "    value_tile, value_tensor + value_batch * b + value_head * g + value_row * first_key, count, 1);",
            f"const {T}* const v_tile = value_tile;",
        ]
    tail = workspace.tail(plan)
    wide = "wide" if tail else "tile_keys"
    if tail:
        lines += [
            "const auto strips = [&](auto columns_of_strip) {",
            "    constexpr i64 wide = columns_of_strip.value;",
        ]
    inner = ["const int there = least(strip, rows - i);"] if partial or problem.score else []
    if partial:
        inner += [
            "bool all = true;",
            "if constexpr (partial.value) {",
            "    W some{}, every = ~W{};",
            "    for (int r = 0; r < there; ++r)",
            "        visible_row(b, head_of(hg, first + i + r), query_of(first + i + r), first_key, count,",
            f"                    visible + {wide} * r, some, every);",
            "    if (!any(some)) continue;",
            "    all = !any(mask_not(every));",
            "}",
        ]
    inner += (
        SCORES_OF_TILES
        if plan.matrix_unit
        else [
            f"product<V, strip, vectors, none, {wide}, {wide}, depth, 1, tile_keys>(",
            "    scores, q_tile + depth * i, panel, head_size);",
        ]
    )
    if plan.matrix_unit and not is_power_of_two(problem.scale):
        inner.append("scale_all<V, strip * tile_keys>(scores, scale);")
    if problem.score is not None:
        inner += [
            "for (int r = 0; r < there; ++r)",
            "    score_row(b, head_of(hg, first + i + r), query_of(first + i + r), first_key, count,",
            f"              scores + {wide} * r);",
        ]
    if partial:
        inner.append(f"if (partial.value && !all) hide<V, strip, {wide}>(scores, visible, minus_infinity);")
    if workspace.columns % plan.tile_keys or problem.keys % workspace.columns:
        inner.append(f"if (count < {wide}) hide_beyond<V, strip, {wide}>(scores, count, minus_infinity);")
    inner.append(f"soften<V, strip, {wide}>(scores, m + i, l + lanes * i, factor, exponential);")
    inner += (
        VALUES_OF_TILES
        if plan.matrix_unit
        else [
            f"product<V, strip, vectors, scaled_sums, width, width, {wide}, 1, {row}>(",
            "    acc + width * i, scores, v_tile, count, factor);",
        ]
    )
    loop = ["for (i64 i = 0; i < rows; i += strip) {", *("    " + line for line in inner), "}"]
    lines += ["    " + line for line in loop] if tail else loop
    if tail:
        lines.append("};")
        lines.append(f"if (count <= {tail}) strips(count_of<{tail}>);  // the last tile of a row or block is narrow")
        lines.append("else strips(count_of<tile_keys>);")
    return lines


def _walk(parts: Parts) -> list[str]:
    """Which tiles of keys a task visits."""
    problem, plan = parts.problem, parts.plan
    if problem.blocks is None:
        stop = "keys" if plan.pieces == 1 else "least(keys, piece * (part + 1))"
        start = "0" if plan.pieces == 1 else "piece * part"
        return [
            f"for (i64 key_at = {start}; key_at < {stop}; key_at += tile_keys)",
            f"    visit(key_at, least(tile_keys, {stop} - key_at), key_at / tile_keys, count_of<0>);",
        ]
    within = "" if plan.pieces == 1 else " if (block >= piece / columns * part && block < piece / columns * (part + 1))"
    head = "0" if not problem.blocks.head_varies else "hg"
    batch = "b" if problem.blocks.batch_varies else "0"
    partial = int(problem.mask is not None)
    return [
        "const auto walk = [&](i64 block, auto partial) {",
        "    const i64 stop = least(keys, columns * (block + 1));",
        "    for (i64 t = 0, key_at = columns * block; key_at < stop; ++t, key_at += tile_keys)",
        "        visit(key_at, least(tile_keys, stop - key_at), block_tiles * block + t, partial);",
        "};",
        f"const i64 list = mask_rows * (mask_heads * {batch} + {head}) + row_block;",
        "for (i64 k = 0; k < kv_num_blocks[list]; ++k) {",
        "    const i64 block = kv_indices[mask_columns * list + k];",
        f"   {within} walk(block, count_of<{partial}>);",
        "}",
        "for (i64 k = 0; k < full_kv_num_blocks[list]; ++k) {",
        "    const i64 block = full_kv_indices[mask_columns * list + k];",
        f"   {within} walk(block, count_of<0>);",
        "}",
    ]


def log_of(problem: AttentionProblem) -> str:
    return "__builtin_logf" if ELEMENT[problem.accumulator] == "f32" else "__builtin_log"


def _close(parts: Parts) -> list[str]:
    """What becomes of a tile's state: rows of the result, or a state to be merged."""
    T = parts.element
    lines = ["for (i64 r = 0; r < rows; ++r) {",
             "    const i64 h = head_of(hg, first + r), q = query_of(first + r);",
             f"    const {T} total = sum_lanes(whole<V>(l + lanes * r));"]  # fmt: skip
    if parts.plan.pieces > 1:
        lines += [
            f"    {T}* const state = states + (width + 2) * (pieces * (queries * (query_heads * b + h) + q) + part);",
            "    state[0] = m[r], state[1] = total;",
            "    write_row<V, width>(state + 2, acc + width * r, 1);",
        ]
    else:
        lines += [
            "    write_row<V, value_size>(out + out_batch * b + out_head * h + out_row * q, acc + width * r,",
            "                             total == 0 ? 0 : 1 / total);",
            "    lse[queries * (query_heads * b + h) + q] ="
            f" total == 0 ? minus_infinity : m[r] + {log_of(parts.problem)}(total);",
        ]
    return [*lines, "}"]


_MERGE = """if (!done) return 1;
// The states of the pieces of a row are merged from left to right.
done = share(batch * query_heads * queries, sizeof(*lse) * width, [&](i64 row, char* memory) {
    const auto* state = states + (width + 2) * pieces * row;
    auto* const acc = Scratch{memory}.take<Element>(width);
    Element m = minus_infinity, l = 0;
    for (i64 p = 0; p < pieces; ++p) m = larger(m, state[(width + 2) * p]);
    clear(acc, width);
    for (i64 p = 0; p < pieces; ++p, state += width + 2) {
        if (state[1] == 0) continue;  // nothing was visible
        const Element factor = largest_lane(exponential(splat<V>(state[0] - m)));
        l += factor * state[1];
        for (i64 d = 0; d < width; d += lanes)
            store_vector(acc + d, (V)(whole<V>(acc + d) + splat<V>(factor) * whole<V>(state + 2 + d)));
    }
    const i64 q = row % queries, h = row / queries % query_heads, b = row / queries / query_heads;
    write_row<V, value_size>(out + out_batch * b + out_head * h + out_row * q, acc, l == 0 ? 0 : 1 / l);
    lse[row] = l == 0 ? minus_infinity : m + {log}(l);
});"""


def finish(
    parts: Parts, stem: str, arguments: list[tuple[str, torch.dtype, str]], workspace: tuple[tuple[str, int], ...],
    lists: tuple[str, ...], named: dict[str, int],
) -> AttentionKernel:  # fmt: skip
    """The translation unit around what was written: preamble, constants, the entry point's head."""
    problem = parts.problem
    given = []
    for name, dtype, role in arguments:
        given.append(f"{'const ' if role == 'input' else ''}{STORED[dtype]}* __restrict {name}")
    head = textwrap.wrap(f'extern "C" i64 {stem}({", ".join(given)}) {{', 116, subsequent_indent="    ")
    said = textwrap.wrap(comment_text(problem), 116)
    lines = [*(f"// {part}" for part in said), *parts.preamble(), f"using Element = {parts.element};"]
    lines += [f"constexpr i64 {name} = {value};" for name, value in named.items() if name not in INTS]
    lines += [f"constexpr int {name} = {named[name]};" for name in INTS if name in named]
    text = list(parts.writer.lines())
    assert text[0].text == HEAD
    text[:1] = map(Line, head)
    before = [Line(line) for line in lines] + [Line("")]
    kernel = Kernel(
        name=stem, language="cpp", lines=(*before, *text), nodes=(), device=problem.device,
        arguments=tuple(KernelArgument(name, name, role, dtype) for name, dtype, role in arguments),
        flags=compiler_flags(problem.device, True), launch={"parallel": 1, "vector_lanes": parts.plan.lanes,
        "accumulators": 1, "checks": (), "imports": tuple(parts.imports), "work": 1 << 30},
        decisions=parts.plan.decisions,
    )  # fmt: skip
    shift = len(before) + len(head) - 1
    passages = tuple((first + shift, stop + shift, what) for first, stop, what in parts.passages)
    return AttentionKernel(kernel, parts.plan, passages, workspace, lists)
