"""Products of small matrices in C++: loops laid out by hand, with holes for compute functions (Sections 6.3 and 8.3).

What :mod:`.product_plan` decided is written here. A kernel consists of

* at most two *packing* loops, which are ordinary pointwise kernels with scratch memory as their output: they turn a
  transposed operand over or compute a prologue such as a relu, once per element,
* three local functions for the holes: ``left`` and ``right`` give an element or a vector of the operands, ``finish``
  is the epilogue and stores,
* one function ``block``, the product itself: a block of sums in registers, all of them updated once per step of the
  summed loop. It is called for whole blocks and for those cut off at either edge.

Every sum has one accumulator that starts at zero and takes the products in the order of the summed index, with a
rounding after each multiplication and each addition. That is the order of the reference semantics, so results are equal
to it bit for bit, on any instruction set and any number of threads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace

from ...loops.body import LoopBody, MemoryAccess
from ...loops.expressions import Expr, Symbol
from ...loops.operands import depends_on, operands
from ...loops.ops import compute_dtype
from ...options import DeviceSpec, Options
from ...provenance import CodeWriter
from ...schedule.records import ScheduleNode
from .loops import Emission, captures, for_loop, levels, pragma, write_pointwise
from .plan import extent, plan
from .product_plan import ProductPlan, plan_product
from .tiles import write_tiles
from .types import ELEMENT
from .values import CppOps, CppValue, Scope

#: Scratch memory up to this size stands on the stack, which threads have 8 MiB of.
STACK_BYTES = 1 << 16


def plan_template(node: ScheduleNode, device: DeviceSpec, options: Options, bytes_read: int) -> ProductPlan:
    """The loops of a template with at least one result; ``depth`` may be 0."""
    return plan_product(node, device)


def write_template(emission: Emission) -> None:
    """Packing, the blocks of the product, and the epilogue."""
    chosen, body = emission.plan, emission.body
    assert isinstance(chosen, ProductPlan)
    batch = body.indices[:-2]
    left, right = operands(body)
    panel, other = (right, left) if chosen.panel_is_right else (left, right)
    packs = []
    if chosen.packed_panel:
        packs.append(_Pack("panel", panel, body.reduction_indices[0], chosen.along, chosen.row_length))
    if chosen.packed_other:
        depth = extent(body.reduction_indices[0])
        packs.append(_Pack("other", other, chosen.across, body.reduction_indices[0], depth))
    once = [pack for pack in packs if not any(depends_on(pack.operand, symbol) for symbol in batch)]
    with contextlib.ExitStack() as stack:
        for pack in once:
            stack.enter_context(pack.written(emission))
        if chosen.share == "batch":
            pragma(emission, len(batch))
        for symbol in batch:
            stack.enter_context(emission.block(for_loop(symbol)))
        for pack in packs:
            if pack not in once:
                stack.enter_context(pack.written(emission))
        _write_blocks(emission, chosen, panel, other)


class _Pack:
    """An operand written to scratch memory ``name``: element (first, second) at ``row_length * first + second``."""

    def __init__(self, name: str, operand: LoopBody, first: Symbol, second: Symbol, row_length: int):
        self.name = name
        self.operand = operand
        self.first = first
        self.second = second
        self.row_length = row_length

    @contextlib.contextmanager
    def written(self, emission: Emission) -> Iterator[None]:
        """Declare the scratch memory, fill it, and give it back when the block that uses it ends."""
        element = ELEMENT[_accumulated(emission)]
        count = extent(self.first) * self.row_length
        on_stack = count * compute_dtype(_accumulated(emission)).itemsize <= STACK_BYTES
        rows, columns = extent(self.first), extent(self.second)
        comment = f"// {rows} x {columns}, an operand once per element"
        if on_stack:
            emission.emit(f"alignas(64) {element} {self.name}_memory[{count}];  {comment}", emission.own)
            emission.emit(f"{element}* const {self.name} = {self.name}_memory;", emission.own)
        else:
            memory = f"({element}*)__builtin_malloc({count}*sizeof({element}))"
            emission.emit(f"{element}* const {self.name} = {memory};  {comment}", emission.own)
        if columns < self.row_length:
            rest = f"for (i64 k = {columns}; k < {self.row_length}; ++k)"
            row = f"for (i64 row = 0; row < {rows}; ++row)"
            emission.emit(f"{row} {rest} {self.name}[{self.row_length}*row + k] = 0;  // whole vectors", emission.own)
        with emission.block("{"):
            self._fill(emission)
        yield
        if not on_stack:
            emission.emit(f"__builtin_free({self.name});", emission.own)

    def _fill(self, emission: Emission) -> None:
        """An ordinary pointwise kernel over the operand's two loops."""
        node, scope = emission.node, emission.scope
        loops = (self.first, self.second)
        dtype = _accumulated(emission)
        index = Expr.of(self.first) * self.row_length + Expr.of(self.second)
        own = replace(
            node, kind="pointwise", name=self.name, buffers=(self.name,), ranges=tuple(extent(s) for s in loops),
            reduction_ranges=(), reduction=None, accumulate_dtype=None, store_dtype=dtype,
            body=replace(self.operand, indices=loops, reduction_indices=()),
            writes=(MemoryAccess(self.name, index, loops),), origins=self.operand.origins or node.origins,
        )  # fmt: skip
        assert isinstance(emission.plan, ProductPlan)
        device = DeviceSpec("cpu", "scratch", emission.plan.instruction_set, emission.plan.vector_bytes)
        decided = replace(plan(own, device, Options()), parallel=0, parallel_innermost=False, decisions=())
        inner = replace(
            scope, vector=decided.vector, lanes=decided.lanes, prefetch=0, prefetch_rows=None, preloaded={},
            arguments={**scope.arguments, self.name: (self.name, dtype)}, level=levels(decided.outer, 0),
            writers=[CodeWriter() for _ in range(len(decided.outer) + 2)], origins=own.origins,
        )  # fmt: skip
        text = CodeWriter()
        packing = Emission(own, decided, inner, text)
        if decided.tile is not None:
            write_tiles(packing)
        else:
            write_pointwise(packing)
        if decided.vector is not None and decided.lanes != emission.plan.lanes:
            emission.emit(f"using mask = Vec<{_mask_element(inner, decided.lanes)}, {decided.lanes}>;", own.origins)
        emission.writer.extend(text.lines())


def _mask_element(scope: Scope, lanes: int) -> str:
    """The element of masks beside vectors of ``lanes``: as wide as the widest of them."""
    widths = [int(e[1:]) // 8 for e, count in scope.vector_types.values() if count == lanes]
    return f"i{8 * max(widths, default=1)}"


def _accumulated(emission: Emission):
    dtype = emission.node.accumulate_dtype
    assert dtype is not None
    return compute_dtype(dtype)


# -- The product -------------------------------------------------------------------------------------------------------


def _write_blocks(emission: Emission, chosen: ProductPlan, panel: LoopBody, other: LoopBody) -> None:
    """The blocks of one product: along the panel outermost, so that a few of its columns stay in the nearest cache."""
    width = chosen.vectors * chosen.lanes
    heads = [for_loop(chosen.along, width), for_loop(chosen.across, chosen.rows)]
    with contextlib.ExitStack() as stack:
        if chosen.share == "blocks":
            pragma(emission, 2)
        else:
            _write_holes(emission, chosen, panel, other)
        for head in heads:
            stack.enter_context(emission.block(head))
        if chosen.share == "blocks":  # no code may stand between loops that are one parallel loop
            _write_holes(emission, chosen, panel, other)
        _call_blocks(emission, chosen)


def _write_holes(emission: Emission, chosen: ProductPlan, panel: LoopBody, other: LoopBody) -> None:
    if extent_of_sum(emission):
        names = ("right", "left") if chosen.panel_is_right else ("left", "right")
        _write_operand(emission, chosen, names[0], panel, "panel" if chosen.packed_panel else "")
        _write_operand(emission, chosen, names[1], other, "other" if chosen.packed_other else "")
    _write_finish(emission, chosen)
    _write_block(emission, chosen)


def extent_of_sum(emission: Emission) -> int:
    """The number of products in each sum, which may be 0."""
    return emission.node.reduction_numel


def _types(emission: Emission, chosen: ProductPlan) -> tuple[str, str]:
    """The types of an element and of a vector of sums."""
    dtype = _accumulated(emission)
    return ELEMENT[dtype], emission.scope.vector_type(dtype) if chosen.lanes > 1 else ELEMENT[dtype]


def _write_operand(emission: Emission, chosen: ProductPlan, name: str, operand: LoopBody, packed: str) -> None:
    """A local function: a vector along the panel (its lanes as an argument), or an element of the other operand."""
    element, vector = _types(emission, chosen)
    is_panel = name == ("right" if chosen.panel_is_right else "left")
    summed = emission.body.reduction_indices[0]
    loop = chosen.along if is_panel else chosen.across
    kind = vector if is_panel else element
    parameters = f"i64 {loop.name}, i64 {summed.name}" + (", auto lanes" if is_panel else "")
    origins = operand.origins or emission.own
    head = f"const auto {name} = {captures(emission)}({parameters}) __attribute__((always_inline)) -> {kind} {{"
    emission.emit(head, origins)
    with emission.writer.indent():
        if packed and is_panel:
            address = f"{packed} + {chosen.row_length}*{summed.name} + {loop.name}"
            read = f"load<{kind}>({address})" if chosen.lanes > 1 else f"load({address})"
            emission.emit(f"return {read};", origins)
        elif packed:
            emission.emit(f"return load({packed} + {extent(summed)}*{loop.name} + {summed.name});", origins)
        else:
            vectorised = chosen.vector if is_panel else None
            scope = _inside(emission, vectorised, chosen.lanes if vectorised is not None else 1)
            handler = CppOps(scope, "lanes" if vectorised is not None else None)
            result = operand.replay(handler)
            emission.writer.extend(scope.writers[0].lines())
            emission.emit(f"return {handler.as_vector(result) if is_panel else result.text};", origins)
    emission.emit("};", origins)


def _inside(emission: Emission, vector: Symbol | None, lanes: int) -> Scope:
    """A scope whose lines all stand in one place: compilers move what does not change out of such short loops."""
    return replace(
        emission.scope, vector=vector, lanes=lanes, prefetch=0, preloaded={}, level={}, writers=[CodeWriter()]
    )


def _write_finish(emission: Emission, chosen: ProductPlan) -> None:
    """The epilogue of one vector (or element) of sums, and its store."""
    _, vector = _types(emission, chosen)
    epilogue = emission.body.epilogue
    assert epilogue is not None
    dtype = _accumulated(emission)
    scope = _inside(emission, chosen.vector, chosen.lanes)
    handler = CppOps(scope, "lanes" if chosen.vector is not None else None)
    symbols = frozenset({chosen.along, chosen.across, Symbol("innermost")})
    value = CppValue("total", dtype, chosen.vector is not None, symbols)
    result = epilogue.replay(handler, value)
    write = emission.node.writes[0]
    handler.tagged(epilogue.origins or emission.origins).store(write.buffer, write.index, result)
    parameters = f"i64 {chosen.across.name}, i64 {chosen.along.name}, {vector} total, auto lanes"
    emission.emit(f"const auto finish = {captures(emission)}({parameters}) __attribute__((always_inline)) {{")
    with emission.writer.indent():
        emission.writer.extend(scope.writers[0].lines())
    emission.emit("};")


def _write_block(emission: Emission, chosen: ProductPlan) -> None:
    """A block of ``rows.value`` by ``vectors.value`` sums; ``lanes`` are those of the last vector."""
    element, vector = _types(emission, chosen)
    across, along = chosen.across.name, chosen.along.name
    summed = emission.body.reduction_indices[0]
    panel, other = ("right", "left") if chosen.panel_is_right else ("left", "right")
    step = f" + {chosen.lanes}*v" if chosen.lanes > 1 else " + v"
    final = f"{along} + {chosen.lanes}*last" if chosen.lanes > 1 else f"{along} + last"
    parameters = f"i64 {across}, i64 {along}, auto rows, auto vectors, auto lanes"
    own = emission.own
    by_row = "#pragma GCC unroll 8\nfor (int r = 0; r < rows.value; ++r)"
    by_vector = "#pragma GCC unroll 4\nfor (int v = 0; v < {stop}; ++v)"
    emission.emit(f"const auto block = {captures(emission)}({parameters}) __attribute__((always_inline)) {{", own)
    with emission.writer.indent():
        emission.emit("constexpr int last = vectors.value - 1;", own)
        emission.emit(f"{vector} sum[rows.value][vectors.value] = {{}};", own)
        if extent_of_sum(emission):
            with emission.block(for_loop(summed)):
                emission.emit(f"{vector} p[vectors.value];  // of the {panel} operand", own)
                emission.emit(by_vector.format(stop="last"), own)
                emission.emit(f"    p[v] = {panel}({along}{step}, {summed.name}, all_lanes);", own)
                emission.emit(f"p[last] = {panel}({final}, {summed.name}, lanes);", own)
                emission.emit(f"{by_row} {{", own)
                with emission.writer.indent():
                    value = f"{other}({across} + r, {summed.name})"
                    spread = f"splat<{vector}>({value})" if chosen.lanes > 1 else value
                    emission.emit(f"const {vector} q = {spread};", own)
                    emission.emit(by_vector.format(stop="vectors.value"), own)
                    product = "q * p[v]" if chosen.panel_is_right else "p[v] * q"
                    emission.emit(f"    sum[r][v] = sum[r][v] + {product};", own)
                emission.emit("}", own)
        emission.emit(f"{by_row} {{", own)
        with emission.writer.indent():
            emission.emit(by_vector.format(stop="last"), own)
            emission.emit(f"    finish({across} + r, {along}{step}, sum[r][v], all_lanes);", own)
            emission.emit(f"finish({across} + r, {final}, sum[r][last], lanes);", own)
        emission.emit("}", own)
    emission.emit("};", own)


def _call_blocks(emission: Emission, chosen: ProductPlan) -> None:
    """Call ``block`` for a whole block, or one that is cut off at an edge."""
    n, m, width = extent(chosen.along), extent(chosen.across), chosen.vectors * chosen.lanes
    tail = n % chosen.lanes
    across, along = chosen.across.name, chosen.along.name
    columns = [(f"{along} < {n // width * width}", chosen.vectors, "all_lanes")] if n // width else []
    if n % width:
        columns.append(("", math.ceil((n % width) / chosen.lanes), f"first<{tail}>" if tail else "all_lanes"))
    rows = [(f"{across} < {m // chosen.rows * chosen.rows}", chosen.rows)]
    if m % chosen.rows:
        rows.append(("", m % chosen.rows))
    started = False
    for column_test, vectors, lanes in columns:
        for row_test, height in rows:
            tests = [test for test, cases in ((column_test, columns), (row_test, rows)) if test and len(cases) > 1]
            condition = f"if ({' && '.join(tests)}) " if tests else ""
            call = f"block({across}, {along}, count<{height}>, count<{vectors}>, {lanes});"
            emission.emit(f"{'else ' if started else ''}{condition}{call}")
            started = True
