"""Attention in C++, backward: gradients of queries, keys, values and captured tensors (Section 9.10).

Nothing of size N x M was kept: the probabilities are made again from the scores and the logarithm of their sum. With
dP = dO V^T and delta the row sums of dO * O, less the gradient of the logarithm itself, what comes to a modified score
is P * (dP - delta); ``score_mod`` is differentiated by its adjoint, replayed right behind the modification, so that
both share what they have in common.

There is one pass over the visited tiles, with five products (Dao, Fu, Ermon, Rudra and Ré, 2022, FlashAttention,
Algorithm 4). A task is a piece of the keys of a head; it walks down the columns of the block mask, along the transposed
lists. The gradients of keys and values are its own. What queries get from it goes to the piece's own copy of their
gradient, and the copies are summed up in order at the end. So no two threads ever add to the same number, nothing is
atomic, and sums are taken in the same order on any number of threads. With many heads there is one piece, hence one
copy; :data:`.attention_parts.SPLIT_TASKS` bounds how many there are otherwise.

What captured tensors get is added up in ``slots``, float64 copies of the gradient. Which tasks share a slot depends on
shapes alone, the tasks of a slot run one after the other, and slots are summed up in order. There are at most
:data:`SLOTS` of them, fewer where a tensor is so large that they would take more than :data:`SLOT_BYTES`.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import torch

from ...attention.problem import AttentionProblem
from ...loops.expressions import Expr, Symbol
from .attention import (
    HEAD,
    ROW_LISTS,
    AttentionKernel,
    constants,
    finish,
    write_panels,
    write_surroundings,
)
from .attention_parts import AttentionPlan, Parts, Workspace, in_place, moved, padded, plan_attention
from .values import CppOps, CppValue

#: The transposed lists of a block mask: which rows of blocks a column visits.
COLUMN_LISTS = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")

SLOTS = 32
SLOT_BYTES = 64 << 20


class BackwardWorkspace(Workspace):
    """Scratch arrays of the backward pass: keys and values turned over, rows of keys as vectors, and delta.
    ``gradients`` maps the number of a captured tensor that gets one to the elements of each of its ``slots``."""

    def __init__(self, problem: AttentionProblem, plan: AttentionPlan):
        super().__init__(problem, plan)
        heads = problem.batch * problem.key_heads
        self.keys_in_place = in_place(problem, problem.key_strides, problem.head_size, plan)
        tiles = heads * self.panels * plan.tile_keys
        self.arrays = (("panels", tiles * problem.head_size), ("value_panels", tiles * problem.value_size))
        if not self.keys_in_place:
            self.arrays += (("key_rows", heads * problem.keys * self.depth),)
        query_heads = problem.batch * problem.query_heads
        rows = min(problem.blocks.rows, problem.queries) if problem.blocks else problem.queries
        tiles = -(-problem.queries // rows) * -(-rows // plan.tile_rows)
        copies = query_heads * plan.pieces * tiles * padded(plan.tile_rows, plan.rows) * self.depth
        self.arrays += (("delta", query_heads * problem.queries), ("d_query_parts", copies))
        learned = {c.number for c in problem.score.adjoint.contributions} if problem.score is not None else set()
        sizes = {number: reach(problem.captured[number]) for number in sorted(learned)}
        self.slots = max(1, min(SLOTS, SLOT_BYTES // max(8 * sum(sizes.values()), 1))) if sizes else 1
        self.gradients = sizes


def reach(captured: object) -> int:
    """Elements from a captured tensor's first to its last: how long the gradient of its memory is."""
    if 0 in captured.shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(captured.shape, captured.strides, strict=True))


def plan_backward(problem: AttentionProblem, configuration: dict[str, int] | None = None) -> AttentionPlan:
    """As for the forward pass, with keys turned over for all tasks and no joined heads; tasks are pieces of keys."""
    return plan_attention(problem, configuration, forward=False)


def backward_source(
    problem: AttentionProblem, configuration: dict[str, int] | None = None, lse_gradient: bool = False
) -> AttentionKernel:
    """The backward kernel of a problem that is not empty, with or without a gradient of the logarithm of sums.

    Its arguments are pointers: query, key, value, result, logarithm of the sum of exponentials, gradient of the result
    (laid out as the result), gradient of the logarithm (if any), the eight lists of the block mask (if any), captured
    tensors, workspace, slots of captured gradients (zeros), and the gradients of query, key and value, which are
    contiguous. Raises CodegenError and OptionError as :func:`.attention.forward_source` does.
    """
    plan = plan_backward(problem, configuration)
    parts = Parts(problem, plan)
    workspace = BackwardWorkspace(problem, plan)
    parts.emit(HEAD)
    with parts.writer.indent():
        write_surroundings(parts)
        write_panels(parts, workspace)
        parts.emit(_delta(lse_gradient))
        parts.emit(f"const auto exponential = {parts.exponential()};")
        parts.write_mask()
        parts.emit(_sizes(parts))
        write_gradient(parts, workspace)
        parts.emit(_STRIP.format(T=parts.element, W=parts.word, **_strip_parts(parts)))
        parts.emit(_one_pass(parts, workspace))
        parts.emit("return done ? 0 : 1;  // 1: no memory")
    parts.emit("}")
    lists = (*ROW_LISTS, *COLUMN_LISTS) if problem.blocks else ()
    arguments = [
        *((name, problem.dtype, "input") for name in ("query_tensor", "key_tensor", "value_tensor", "result")),
        ("lse", problem.accumulator, "input"),
        ("d_result", problem.dtype, "input"),
        *([("d_lse", problem.accumulator, "input")] if lse_gradient else []),
        *((name, torch.int32, "input") for name in lists),
        *((name, dtype, "input") for name, dtype in parts.captured()),
        *((name, problem.accumulator, "inout") for name, _ in workspace.arrays),
        *((f"slots{number}", torch.float64, "inout") for number in workspace.gradients),
        *((name, problem.dtype, "output") for name in ("d_query", "d_key", "d_value")),
    ]
    named = constants(parts, workspace) | {"slots": workspace.slots, "key_strip": key_strip(plan)}
    made = finish(parts, "attention_backward", arguments, workspace.arrays, lists, named)
    inputs, results, *others = moved(problem, plan, workspace)
    account = (("inputs", inputs[1] + results[1]), ("results", inputs[1]), *others)
    counted = replace(made.kernel, bytes_read=account[0][1], bytes_written=account[1][1])
    learned = tuple(workspace.gradients.items())
    return replace(made, kernel=counted, moved=account, gradients=learned, slots=workspace.slots)


def key_strip(plan: AttentionPlan) -> int:
    """Keys in a block of sums of the second pass: a divisor of the keys in a tile."""
    return math.gcd(plan.tile_keys, 4)


def _delta(lse_gradient: bool) -> str:
    """Row sums of dO * O, less what comes to the logarithm of the sum, once per row."""
    less = " - d_lse[row]" if lse_gradient else ""
    return f"""// delta: row sums of dO * O{", less the gradient of the logarithm of the sum" if lse_gradient else ""}.
done = share(batch * query_heads, 0, [&](i64 head, char*) {{
    for (i64 q = 0; q < queries; ++q) {{
        const i64 at = out_batch * (head / query_heads) + out_head * (head % query_heads) + out_row * q;
        const i64 row = queries * head + q;
        delta[row] = dot<V, value_size>(result + at, d_result + at){less};
    }}
}});
if (!done) return 1;"""


def _sizes(parts: Parts) -> str:
    rows = "block_rows" if parts.problem.blocks else "queries"
    return f"""constexpr i64 rows_of_block = least({rows}, queries);
constexpr i64 tiles_of_block = (rows_of_block + tile_rows - 1) / tile_rows;
constexpr i64 row_blocks = (queries + {rows} - 1) / {rows};
constexpr i64 row_tiles = row_blocks * tiles_of_block;
constexpr i64 room = (tile_rows + strip - 1) / strip * strip;  // whole strips"""


def write_gradient(parts: Parts, workspace: BackwardWorkspace) -> None:
    """``gradient_row``: scores and dP of one row become P and the derivative of the scores before modification, where
    ``lanes`` take part; elsewhere 0. What captured tensors get is added to the task's slot on the way."""
    problem, plan = parts.problem, parts.plan
    score = problem.score
    scope = parts.scope(score)
    if score is None:
        scope.vector = _KEY if plan.lanes > 1 else None
        scope.level = {}
    handler = parts.handler(scope)
    vector = plan.lanes > 1
    wide = problem.accumulator
    symbols = frozenset(score.symbols) if score is not None else frozenset({_KEY})
    value, product = (CppValue(name, wide, vector, symbols) for name in ("score", "product"))
    reference, delta = (CppValue(name, wide, False, frozenset()) for name in ("reference", "delta_of_row"))
    made: dict[str, CppValue] = {}

    def upstream(modified: CppValue) -> CppValue:
        made["modified"] = modified
        shifted = handler.as_vector(handler.apply("sub", modified, reference))
        scope.writers[1].emit(f"const V probability = exponential({shifted});")
        made["p"] = CppValue("probability", wide, vector, symbols)
        return handler.apply("mul", made["p"], handler.apply("sub", product, delta))

    contributions = []
    if score is None:
        d_score = upstream(value)
    else:
        d_score, contributions = score.adjoint.replay(handler, value, upstream)
    parts.counter = scope.counter
    writer = scope.writers[1]
    if score is not None:
        modified = handler.as_vector(made["modified"])
        writer.emit(f"const auto seen = except(lanes, {modified}, minus_infinity);  // -inf takes part in nothing")
    else:
        writer.emit("const auto seen = lanes;")
    for c in contributions:
        writer.emit(f"if constexpr (learning.value) {contribute(handler, c)}")
    writer.emit(f"p_out = only(seen, {handler.as_vector(made['p'])});")
    writer.emit(f"d_out = only(seen, {handler.as_vector(d_score)});")
    context = parts.passage(score, "score_mod with its derivative") if score is not None else nullcontext()
    slots = "".join(f", f64* gradient{number}" for number in workspace.gradients)
    T, W, always = parts.element, parts.word, "__attribute__((always_inline))"
    with context:
        parts.emit(
            f"const auto gradient_row = [&](i64 b, i64 h, i64 q, i64 first_key, i64 count, {T} lse_of_row, "
            f"{T} delta_of_row,\n        {T}* row, {T}* products, const {W}* visible, auto partial, "
            f"auto learning{slots}) {always} {{"
        )
        with parts.writer.indent():
            parts.emit(f"const {T} reference = lse_of_row == minus_infinity ? ({T})0 : lse_of_row;")
            parts.writer.extend(scope.writers[0].lines())
            parts.emit("const auto each = [&](i64 kv, V score, V product, auto lanes, V& p_out, V& d_out)")
            parts.emit(f"        {always} {{")
            with parts.writer.indent():
                parts.writer.extend(writer.lines())
            parts.emit("};")
            parts.emit(_GRADIENT_LOOP)
        parts.emit("};")


_KEY = Symbol("kv", 0, 0)

_GRADIENT_LOOP = """for (i64 k = 0; k < tile_keys; k += lanes) {
    V p{}, d{};
    const V score = whole<V>(row + k), product = whole<V>(products + k);
    if (k >= count) {}  // no keys: nothing was said about their visibility either
    else if constexpr (partial.value) each(first_key + k, score, product, seen_lanes<W>(visible + k), p, d);
    else if (k + lanes <= count) each(first_key + k, score, product, all_lanes, p, d);
    else each(first_key + k, score, product, lanes_within<W>(count - k), p, d);
    store_vector(row + k, p);
    store_vector(products + k, d);
}"""


def contribute(handler: CppOps, contribution: object) -> str:
    """The statement that adds a vector of contributions to a slot."""
    index = Expr.of(contribution.subscript)
    target = f"gradient{contribution.number}"
    value = handler.as_vector(contribution.value)
    if handler.scope.vector is None:
        return f"{target}[{index.c_style()}] += only(seen, {value});"
    if not handler._varies(index):
        return f"{target}[{index.c_style()}] += sum_of(only(seen, {value}));"
    if handler._step(index) == 1:
        return f"add_vector({target} + {index.c_style()}, only(seen, {value}), seen);"
    return f"add_lanes({target}, [&](i64 lane) {{ return {handler._lane_text(index)}; }}, only(seen, {value}), seen);"


def _strip_parts(parts: Parts) -> dict[str, str]:
    problem = parts.problem
    mask = ""
    if problem.mask is not None and problem.blocks is not None:
        mask = """
    if constexpr (partial.value) {
        W some{}, every = ~W{};
        for (int r = 0; r < there; ++r)
            visible_row(b, h, first + i + r, first_key, count, visible + tile_keys * r, some, every);
        if (!any(some)) return false;
    }"""
    numbers = BackwardWorkspace(problem, parts.plan).gradients
    names = "".join(f", f64* gradient{number}" for number in numbers)
    given = "".join(f", gradient{number}" for number in numbers)
    return {"mask": mask, "gradients": names, "given": given}


_STRIP = """// A strip of queries against a tile of keys: P and the derivative of scores. False if nothing is visible.
const auto strip_of = [&](i64 b, i64 h, i64 first, i64 i, int there, i64 first_key, i64 count, const {T}* q_tile,
        const {T}* o_tile, const {T}* panel, const {T}* value_panel, {T}* p, {T}* d, {W}* visible, auto partial,
        auto learning{gradients}) {{{mask}
    product<V, strip, vectors, none, tile_keys, tile_keys, depth, 1, tile_keys>(
        p, q_tile + depth * i, panel, head_size);
    product<V, strip, vectors, none, tile_keys, tile_keys, width, 1, tile_keys>(
        d, o_tile + width * i, value_panel, value_size);
    const i64 row = queries * (query_heads * b + h) + first + i;
    for (int r = 0; r < there; ++r)
        gradient_row(b, h, first + i + r, first_key, count, lse[row + r], delta[row + r], p + tile_keys * r,
                     d + tile_keys * r, visible + tile_keys * r, partial, learning{given});
    return true;
}};
// Queries, scaled, and gradients of their results, as rows of whole vectors; rows that do not exist are zeros.
const auto load_rows = [&](i64 b, i64 h, i64 first, i64 rows, {T}* q_tile, {T}* o_tile) {{
    copy_rows<V, depth, head_size, query_row, query_step>(
        q_tile, query_tensor + query_batch * b + query_head * h + query_row * first, rows, scale);
    copy_rows<V, width, value_size, out_row, 1>(
        o_tile, d_result + out_batch * b + out_head * h + out_row * first, rows, 1);
    clear(q_tile + depth * rows, depth * (room - rows));
    clear(o_tile + width * rows, width * (room - rows));
}};"""


def _one_pass(parts: Parts, workspace: BackwardWorkspace) -> str:
    """The tasks: pieces of the keys of a head, tile by tile, against all queries of the group that see them."""
    problem, plan, T, W = parts.problem, parts.plan, parts.element, parts.word
    blocks = "block_rows" if problem.blocks else "queries"
    if workspace.keys_in_place:
        key_row, key_at = "key_row", "key_tensor + key_batch * b + key_head * g + key_row * first_key"
    else:
        key_row, key_at = "depth", "key_rows + depth * (keys * (key_heads * b + g) + first_key)"
    learning = int(bool(workspace.gradients))
    slot = "\n".join(
        f"    f64* const gradient{number} = slots{number} + {size} * slot;"
        for number, size in workspace.gradients.items()
    )
    given = "".join(f", gradient{number}" for number in workspace.gradients)
    if problem.blocks is None:
        walk = "visit(0, h, count_of<0>);"
        panels = f"constexpr i64 panels_of_piece = {-(-plan.piece // plan.tile_keys)};"
    else:
        batch = "b" if problem.blocks.batch_varies else "0"
        head = "h" if problem.blocks.head_varies else "0"
        panels = f"constexpr i64 panels_of_piece = {-(-plan.piece // workspace.columns)} * block_tiles;"
        walk = f"""const i64 list = mask_columns * (mask_heads * {batch} + {head}) + number / block_tiles;
for (i64 k = 0; k < q_num_blocks[list]; ++k)
    visit(q_indices[mask_rows * list + k], h, count_of<{int(problem.mask is not None)}>);
for (i64 k = 0; k < full_q_num_blocks[list]; ++k)
    visit(full_q_indices[mask_rows * list + k], h, count_of<0>);"""
    together = "slots" if learning else "tasks"
    places = [("head / query_heads", "head % query_heads", "first + r"), *[("b", "g", "first_key + j")] * 2]
    of_query, of_key, of_value = (
        " + ".join(f"{step} * ({index})" for step, index in zip(strides, place, strict=False))
        for strides, place in zip(problem.gradient_strides, places, strict=True)
    )
    return f"""// A tile of keys with the strips of queries that see it; what queries get goes to the piece's own copy.
constexpr i64 pieces = {plan.pieces}, tasks = batch * key_heads * pieces;
{panels}
constexpr i64 part_size = row_tiles * room * depth;
constexpr i64 elements = (room + tile_keys) * (depth + width) + 2 * tile_keys * room + tile_keys * strip;
done = share({together}, sizeof({T}) * elements + 64 * 10, [&](i64 slot, char* memory) {{
    Scratch scratch{{memory}};
    {T}* const q_tile = scratch.take<{T}>(room * depth);
    {T}* const o_tile = scratch.take<{T}>(room * width);
    {T}* const dk = scratch.take<{T}>(tile_keys * depth);
    {T}* const dv = scratch.take<{T}>(tile_keys * width);
    {T}* const p = scratch.take<{T}>(tile_keys * room);
    {T}* const d = scratch.take<{T}>(tile_keys * room);
    {W}* const visible = scratch.take<{W}>(tile_keys * strip);
{slot}
    for (i64 task = slot; task < tasks; task += {together}) {{
        const i64 part = task % pieces, b = task / pieces / key_heads, g = task / pieces % key_heads;
        for (i64 h = group * g; h < group * (g + 1); ++h)
            clear(d_query_parts + part_size * (pieces * (query_heads * b + h) + part), part_size);
        const i64 last = least(panels_of_head, panels_of_piece * (part + 1));
        for (i64 number = panels_of_piece * part; number < last; ++number) {{
            const i64 first_key = columns * (number / block_tiles) + tile_keys * (number % block_tiles);
            const i64 count = least(tile_keys, least(keys, columns * (number / block_tiles + 1)) - first_key);
            if (count <= 0) continue;
            const i64 at = tile_keys * (panels_of_head * (key_heads * b + g) + number);
            const auto* const key_tile = {key_at};
            clear(dk, tile_keys * depth);
            clear(dv, tile_keys * width);
            const auto visit = [&](i64 row_block, i64 h, auto partial) {{
                {T}* const dq_head = d_query_parts + part_size * (pieces * (query_heads * b + h) + part);
                for (i64 t = 0; t < tiles_of_block; ++t) {{
                    const i64 first = {blocks} * row_block + tile_rows * t;
                    const i64 rows = least(tile_rows, least(queries, {blocks} * (row_block + 1)) - first);
                    if (rows <= 0) break;
                    {T}* const dq = dq_head + room * depth * (tiles_of_block * row_block + t);
                    load_rows(b, h, first, rows, q_tile, o_tile);
                    bool all_hidden = true;
                    for (i64 i = 0; i < rows; i += strip) {{
                        const int there = least(strip, rows - i);
                        const bool some = strip_of(
                            b, h, first, i, there, first_key, count, q_tile, o_tile, panels + head_size * at,
                            value_panels + value_size * at, p + tile_keys * i, d + tile_keys * i, visible, partial,
                            count_of<{learning}>{given});
                        if (!some) {{
                            clear(p + tile_keys * i, tile_keys * strip);
                            clear(d + tile_keys * i, tile_keys * strip);
                            continue;
                        }}
                        all_hidden = false;
                        product<V, strip, vectors, sums, depth, depth, tile_keys, 1, {key_row}>(
                            dq + depth * i, d + tile_keys * i, key_tile, count);
                    }}
                    if (all_hidden) continue;
                    for (i64 j = 0; j < count; j += key_strip) {{
                        product<V, key_strip, vectors, sums, width, width, 1, tile_keys, width>(
                            dv + width * j, p + j, o_tile, rows);
                        product<V, key_strip, vectors, sums, depth, depth, 1, tile_keys, depth>(
                            dk + depth * j, d + j, q_tile, rows);
                    }}
                }}
            }};
            for (i64 h = group * g; h < group * (g + 1); ++h) {{
{_indented(walk, 16)}
            }}
            for (i64 j = 0; j < count; ++j) {{
                write_row<V, head_size>(
                    d_key + {of_key}, dk + depth * j, 1);
                write_row<V, value_size>(
                    d_value + {of_value}, dv + width * j, 1);
            }}
        }}
    }}
}});
if (!done) return 1;
// Gradients of queries: the pieces of the keys in order.
done = share(batch * query_heads * row_tiles, sizeof({T}) * depth, [&](i64 task, char* memory) {{
    {T}* const total = Scratch{{memory}}.take<{T}>(depth);
    const i64 tile = task % row_tiles, head = task / row_tiles, row_block = tile / tiles_of_block;
    const i64 first = {blocks} * row_block + tile_rows * (tile % tiles_of_block);
    const i64 rows = least(tile_rows, least(queries, {blocks} * (row_block + 1)) - first);
    for (i64 r = 0; r < rows; ++r) {{
        clear(total, depth);
        for (i64 part = 0; part < pieces; ++part) {{
            const {T}* const one = d_query_parts + part_size * (pieces * head + part) + depth * (room * tile + r);
            for (i64 k = 0; k < depth; k += lanes)
                store_vector(total + k, whole<V>(total + k) + whole<V>(one + k));
        }}
        write_row<V, head_size>(
            d_query + {of_query}, total, scale);
    }}
}});"""


def _indented(text: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in text.split("\n"))
