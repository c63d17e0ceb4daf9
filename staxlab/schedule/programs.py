"""Rows on a GPU: which nodes share a kernel there (Sections 7.3, 9.4 and 9.5; Definition 7.2).

A GPU has no cache that belongs to a row. What a program instance holds of a row it holds in *registers*, one element in
a lane, and no lane sees what another one holds, except in a reduction. So the rules of :mod:`.fusion` are others here:

``space``     members are reductions over one and the same space (rows, columns), elementwise values over its points,
              and values of its rows; or elementwise values over equally many points. In what order a node's loops
              become rows and columns is free, and the one is taken in which shared elements lie in one lane
``index``     a lane reads the very element that it wrote (Proposition 7.2), as subscripts over (row, column) tell
``lanes``     neighbouring lanes touch neighbouring elements, of all members along the same direction
``registers`` a row that is too long to be held is walked along once for every reduction that needs the one before it
              (:func:`plan_passes`); what an earlier pass made is made again, and if that takes more than it saves,
              nothing is fused
``rows``      each row has a program instance to itself; too few of them would leave the device idle

A product that a template computes has no rows: what joins it is its epilogue, by the rules of :mod:`.epilogues`.

Two reductions need no passes of their own, ``max(x)`` and ``sum(exp(x - max(x)))``: pairs (m, d) of a maximum and a sum
relative to it merge like numbers (Proposition 9.1; Milakov and Gimelshein, 2018, "Online normalizer calculation for
softmax"), so one pass finds both. Nor does a sum of squared deviations from a mean that the pass finds itself
(:mod:`.squared_deviations`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..loops.body import LoopBody, MemoryAccess
from ..loops.expressions import Expr, Symbol
from ..loops.ir import Layout
from ..loops.ops import OPERATIONS
from ..options import Decision, DeviceSpec
from .epilogues import corresponding, refusal
from .fusion import Fusion, Group, Pair, Score, score
from .records import ScheduleNode
from .rows import RowView
from .squared_deviations import SquaredDeviations, squared_deviations

ROW, COLUMN = "i0", "r0"

#: Up to this length a row is held whatever else a kernel does with it (the rule of Section 9.4).
HELD_BY_RULE = 1024

#: Rows longer than this are walked along by enough lanes only if there are as many rows as half the multiprocessors.
LONG_ROW = 8192

#: The part of a multiprocessor's registers, as a divisor, that the rows of one program instance may take: by which four
#: instances are resident beside what else a thread keeps. Measured on an H200: beyond 8,192 float32 elements walking
#: along a row twice is up to 1.2 times as fast as holding it, since two instances of 1,024 threads do not keep memory
#: busy; but where every pass computes exponentials (softmax) holding it is 1.2 times as fast as computing them twice.
REGISTER_SHARE, REGISTER_SHARE_OF_EXPONENTIALS = 8, 4

#: Views of a node that are tried, and steps of the search for views of a group's members that fit together.
MOST_VIEWS, MOST_STEPS = 12, 400

#: Arrays that a later pass may read again, beyond those it reads anyway, to make what an earlier pass made.
MOST_READ_AGAIN = 1


@dataclass(frozen=True)
class ProgramView(RowView):
    """``node`` over the rows of one loop and ``columns``: an elementwise value over both, a reduction of the columns,
    or, where it has no loops left, a value for each row."""

    columns: int = 1


# -- views -------------------------------------------------------------------------------------------------------------


def program_views(node: ScheduleNode, rows: int, columns: int) -> Iterator[ProgramView]:
    """The ways of writing a node over (rows, columns), those that keep the order of its loops first."""
    body = node.body
    assert body is not None
    kept = list(zip(body.indices, node.ranges, strict=True))
    if node.kind == "reduction":
        reduced = list(zip(body.reduction_indices, node.reduction_ranges, strict=True))
        if (node.numel, node.reduction_numel) == (rows, columns):
            yield _view(node, rows, columns, [(s, n, 1) for s, n in kept], [(s, n, 1) for s, n in reduced])
    elif node.numel == rows:
        yield _view(node, rows, columns, [(s, n, 1) for s, n in kept], [])
    elif node.numel == rows * columns:
        found = itertools.chain(_whole_loops(kept, rows), _cut_loop(kept, rows))
        yield from (_view(node, rows, columns, *sides) for sides in itertools.islice(found, MOST_VIEWS))


#: A loop, or a part of one: its symbol, its extent, and what one step of it adds to the symbol.
Piece = tuple[Symbol, int, int]
Sides = tuple[list[Piece], list[Piece]]


def _whole_loops(kept: list[tuple[Symbol, int]], rows: int) -> Iterator[Sides]:
    """Every choice of loops whose product is the number of rows, outermost loops first."""
    choices = sorted(itertools.product((True, False), repeat=len(kept)), reverse=True)
    for taken in choices:
        if _product(n for (_, n), row in zip(kept, taken, strict=True) if row) == rows:
            sides: Sides = ([], [])
            for (symbol, extent), row in zip(kept, taken, strict=True):
                sides[0 if row else 1].append((symbol, extent, 1))
            yield sides


def _cut_loop(kept: list[tuple[Symbol, int]], rows: int) -> Iterator[Sides]:
    """The same with one loop of ``n * r`` iterations cut into n times r, either part being the rows'."""
    for position, (cut, extent) in enumerate(kept):
        others = kept[:position] + kept[position + 1 :]
        for taken in sorted(itertools.product((True, False), repeat=len(others)), reverse=True):
            part, rest = divmod(rows, _product(n for (_, n), row in zip(others, taken, strict=True) if row))
            if rest or part in (1, extent) or part == 0 or extent % part:
                continue
            for outer in (True, False):  # whether the rows are the outer part of the loop
                whole = [*taken[:position], None, *taken[position:]]
                sides: Sides = ([], [])
                for (symbol, n), row in zip(kept, whole, strict=True):
                    if row is not None:
                        sides[0 if row else 1].append((symbol, n, 1))
                        continue
                    inside = extent // part if outer else part
                    sides[0 if outer else 1].append((cut, extent // inside, inside))
                    sides[1 if outer else 0].append((cut, inside, 1))
                yield sides


def _view(
    node: ScheduleNode, rows: int, columns: int, row_pieces: list[Piece], column_pieces: list[Piece]
) -> ProgramView:
    row, column = Symbol(ROW, 0, rows - 1), Symbol(COLUMN, 0, max(columns - 1, 0))
    values: dict[Symbol, Expr] = {}
    for flat, pieces in ((row, row_pieces), (column, column_pieces)):
        stride = 1
        for symbol, extent, step in reversed(pieces):
            part = (Expr.of(flat) // stride) % extent * step
            values[symbol] = values[symbol] + part if symbol in values else part
            stride *= extent
    body = node.body
    assert body is not None
    inner = (column,) if column_pieces else ()
    indices, reduced = ((), inner) if node.kind == "reduction" else (inner, ())

    def access(old: MemoryAccess) -> MemoryAccess:
        return replace(old, index=old.index.substitute(values), symbols=(row, *inner))

    def result(old: MemoryAccess) -> MemoryAccess:
        symbols = (row,) if node.kind == "reduction" else (row, *inner)
        return replace(old, index=old.index.substitute(values), symbols=symbols)

    twin = replace(
        node, body=body.substitute(values, indices, reduced), ranges=tuple(columns for _ in indices),
        reduction_ranges=tuple(columns for _ in reduced), reads=tuple(map(access, node.reads)),
        writes=tuple(map(result, node.writes)),
    )  # fmt: skip
    return ProgramView(twin, (row,), columns=columns)


# -- passes ------------------------------------------------------------------------------------------------------------


def is_full(member: ScheduleNode) -> bool:
    """Whether a member makes an element of every point, not one of every row."""
    return member.kind == "pointwise" and bool(member.ranges)


@dataclass(frozen=True)
class Passes:
    """How often a row is walked along: ``count`` times. ``number`` of a member: the pass that makes it; of a value of
    the rows, the pass before which it is made. ``online`` leads from a sum of exponentials to the maximum that shares
    its pass, ``late`` from a sum of squared deviations to what it is made of where the row value in it is known only
    after the pass."""

    number: dict[str, int]
    online: dict[str, str]
    count: int
    late: dict[str, SquaredDeviations] = field(default_factory=dict)


def plan_passes(members: tuple[ScheduleNode, ...], *, late: bool = True) -> Passes:
    """The passes of a row that is not held: a reduction is there only for the passes after its own. Without ``late``,
    deviations are formed after what they are deviations from is known, as a row that is held has them."""
    makers = {buffer: member for member in members for buffer in member.buffers}
    online = _online_pairs(members)
    number: dict[str, int] = {}
    found: dict[str, SquaredDeviations] = {}

    def known_from(buffers: Iterable[str]) -> int:
        """The first pass in which the values of these buffers are there."""
        made_here = [makers[buffer] for buffer in buffers if buffer in makers]
        return max((number[maker.name] + (maker.kind == "reduction") for maker in made_here), default=0)

    for member in members:
        partner = online.get(member.name)
        reads = {a.buffer for a in member.reads}
        first = known_from(b for b in reads if b not in makers or makers[b].name != partner)
        if partner is not None:
            first = max(first, number[partner])
            if first > number[partner]:  # what else it needs comes later
                first = max(first, number[partner] + 1)
                del online[member.name]
        deviations = squared_deviations(member) if late and member.name not in online else None
        if deviations is not None and _is_mean(deviations.center, deviations.value, makers):
            value, center = ([a.buffer for a in part.reads()] for part in (deviations.value, deviations.center))
            before = max(known_from(value), known_from(center) - 1)
            if before < first:
                first, found[member.name] = before, deviations
        number[member.name] = first
    walking = [number[member.name] for member in members if is_full(member) or member.kind == "reduction"]
    return Passes(number, online, max(walking, default=-1) + 1, found)


def _online_pairs(members: tuple[ScheduleNode, ...]) -> dict[str, str]:
    """Sums of ``exp(v - m)`` and the maximum m of the same v, kept without rounding; one sum for a maximum."""
    greatest = {member.buffers[0]: member for member in members if member.reduction == "amax"}
    pairs: dict[str, str] = {}
    for member in members:
        if member.reduction != "sum" or member.body is None:
            continue
        found = {s.id: s for s in member.body.statements}
        last = found[member.body.result]
        if last.operation != "exp" or found[last.args[0]].operation != "sub":
            continue
        value, shift = found[last.args[0]].args
        maximum = greatest.get(found[shift].args[0]) if found[shift].operation == "load" else None
        if maximum is None or maximum.name in pairs.values() or maximum.body is None:
            continue
        exact = maximum.store_dtype == maximum.accumulate_dtype == member.accumulate_dtype
        if exact and same_value(maximum.body, maximum.body.result, member.body, value):
            pairs[member.name] = maximum.name
    return pairs


def same_value(one: LoopBody, first: int, other: LoopBody, second: int) -> bool:
    """Whether two statements of two bodies over the same loops make the same value in the same way."""
    a = next((s for s in one.statements if s.id == first), None)
    b = next((s for s in other.statements if s.id == second), None)
    if a is None or b is None or (a.operation, a.dtype) != (b.operation, b.dtype) or a.operation == "masked":
        return False
    if a.operation in ("load", "constant", "index_value"):
        return a.args == b.args and not any(
            s.name.startswith("indirect") for e in a.args if isinstance(e, Expr) for s in e.symbols
        )
    if a.operation == "to_dtype":
        return a.args[1] == b.args[1] and same_value(one, a.args[0], other, b.args[0])
    if a.operation in ("indirect", "merged"):
        return False
    return all(same_value(one, x, other, y) for x, y in zip(a.args, b.args, strict=True))


def _is_mean(center: LoopBody, value: LoopBody, makers: Mapping[str, ScheduleNode]) -> bool:
    """Whether a body makes the sum of another one's values divided by a positive number."""
    found = {statement.id: statement for statement in center.statements}
    last = found[center.result]
    if last.operation == "to_dtype":
        return _is_mean(replace(center, result=last.args[0]), value, makers)
    if last.operation == "load":
        maker = makers.get(last.args[0])
        row_value = maker is not None and maker.kind == "pointwise" and not is_full(maker)
        return row_value and _is_mean(maker.body, value, makers)
    if last.operation != "truediv":
        return False
    total, count = (found[argument] for argument in last.args)
    maker = makers.get(total.args[0]) if total.operation == "load" else None
    if maker is None or maker.reduction != "sum" or maker.body is None:
        return False
    counted = count.operation == "constant" and 0 < count.args[0] < math.inf
    return counted and same_value(maker.body, maker.body.result, value, value.result)


def arrays_of_passes(members: tuple[ScheduleNode, ...], passes: Passes) -> list[tuple[set, set]]:
    """For each pass, the elementwise accesses that its members read from outside, and those that making earlier values
    again adds."""
    makers = {buffer: member for member in members for buffer in member.buffers}

    def outside(member: ScheduleNode) -> set[tuple[str, Expr]]:
        return {(a.buffer, a.index) for a in member.reads if a.buffer not in makers and _is_elementwise(a)}

    def earlier(member: ScheduleNode, number: int) -> Iterator[ScheduleNode]:
        for access in member.reads:
            maker = makers.get(access.buffer)
            if maker is not None and is_full(maker):
                if passes.number[maker.name] < number:
                    yield maker
                yield from earlier(maker, number)

    found: list[tuple[set, set]] = [(set(), set()) for _ in range(passes.count)]
    for member in members:
        if is_full(member) or member.kind == "reduction":
            number = passes.number[member.name]
            found[number][0].update(outside(member))
            for maker in earlier(member, number):
                found[number][1].update(outside(maker))
    return [(direct, again - direct) for direct, again in found]


def _is_dear(member: ScheduleNode) -> bool:
    """Whether every element takes a transcendental function, which another pass would compute again."""
    if member.body is None or not (is_full(member) or member.kind == "reduction"):
        return False
    rules = (OPERATIONS.get(statement.operation) for statement in member.body.all_statements())
    return any(rule is not None and rule.transcendental for rule in rules)


def _is_elementwise(access: MemoryAccess) -> bool:
    return {s.name for s in access.index.symbols} >= {ROW, COLUMN}


def residence(
    name: str, members: tuple[ScheduleNode, ...], columns: int, layouts: Mapping[str, Layout], device: DeviceSpec
) -> Decision:
    """Whether a program instance holds a row whole ("persistent") or walks along it ("looped"), where lanes run along
    the row. Held at once are the arrays that several passes read, and one more that is on its way."""
    length = 1 << max(columns - 1, 0).bit_length()
    passes = plan_passes(members)
    used: dict[tuple[str, Expr], int] = {}
    for direct, again in arrays_of_passes(members, plan_passes(members, late=False)):
        for access in direct | again:
            used[access] = used.get(access, 0) + 1
    wide = max((layouts[buffer].dtype.itemsize for buffer, _ in used), default=4)
    arrays = max(sum(count > 1 for count in used.values()) + any(count == 1 for count in used.values()), 1)
    wanted = arrays * length * max(wide, 4)
    dear = any(_is_dear(member) for member in members)
    room = 4 * device.registers_per_multiprocessor // (REGISTER_SHARE_OF_EXPONENTIALS if dear else REGISTER_SHARE)
    kind = "persistent" if length <= HELD_BY_RULE or wanted <= room else "looped"
    if kind == "looped":
        reason = f"{arrays} x {columns:,} elements exceed the registers of an instance: {passes.count} passes"
    elif length <= HELD_BY_RULE:
        reason = f"a row of {columns:,} is within the {HELD_BY_RULE:,} elements held whole by rule; it is read once"
    else:
        reason = f"{arrays} x {columns:,} elements fit into the registers of an instance: the row is read once"
    inputs = (("row", columns), ("arrays held", arrays), ("bytes wanted", wanted), ("bytes of registers", room),
              ("passes otherwise", passes.count))  # fmt: skip
    return Decision("persistent-reduction", name, kind, reason, ("persistent", "looped"), inputs)


# -- legality ----------------------------------------------------------------------------------------------------------


class ProgramFusion(Fusion):
    """Algorithm 7.1 by the rules of a GPU."""

    kinds = ("pointwise", "reduction")

    def __init__(
        self,
        nodes: list[ScheduleNode],
        layouts: Mapping[str, Layout],
        escaping: frozenset[str],
        score: Score = score,
        *,
        device: DeviceSpec,
    ):
        super().__init__(nodes, layouts, escaping, score)
        self.device = device
        self._programs: dict[tuple[str, int, int], list[ProgramView]] = {}

    def _aligned(self, pair: Pair) -> Pair:
        nodes = sorted((*pair.first.members, *pair.second.members), key=lambda node: self.position[node.name])
        if any(node.kind == "template" for node in nodes):
            return self._epilogue(pair, tuple(nodes))
        strange = next((n for n in nodes if n.kind not in ("pointwise", "reduction")), None)
        if strange is not None:
            return replace(pair, rule="space", reason=f"a {strange.kind} has a kernel of its own")
        spaces = {(n.numel, n.reduction_numel) for n in nodes if n.kind == "reduction"}
        if len(spaces) > 1:
            (a, b), (c, d), *_ = sorted(spaces)
            return replace(pair, rule="space", reason=f"reductions over {a} x {b} and {c} x {d} points")
        rows, columns = next(iter(spaces), (nodes[0].numel, 1))
        for node in nodes:
            if node.kind == "pointwise" and node.numel not in (rows, rows * columns):
                return replace(pair, rule="space", reason=f"{node.numel} points are not {rows} x {columns}")
        given = {}
        for group in (pair.first, pair.second):
            if group.views and (group.views[0].rows, group.views[0].columns) == (rows, columns):
                given |= {view.name: [view] for view in group.views}
        found = self._search(nodes, rows, columns, given)
        if found is None:
            return replace(pair, rule="index", reason="a lane would read what another one writes")
        rule, reason = self._offence(pair, nodes, found)
        if rule:
            return replace(pair, rule=rule, reason=reason)
        return replace(pair, merged=Group(tuple(nodes), tuple(found)))

    def _joins(self, node: ScheduleNode) -> bool:
        return super()._joins(node) or node.kind == "template"

    def _epilogue(self, pair: Pair, nodes: tuple[ScheduleNode, ...]) -> Pair:
        """The pair as a product with its epilogue, without rows (:mod:`.epilogues`)."""
        rule, reason = refusal(nodes)
        if rule:
            return replace(pair, rule=rule, reason=reason)
        members = corresponding(nodes)
        if members is None:
            return replace(pair, rule="index", reason="an element is read in another place of the tile than it is made")
        return replace(pair, merged=Group(nodes, tuple(ProgramView(node, (), columns=1) for node in members)))

    def _search(
        self, nodes: list[ScheduleNode], rows: int, columns: int, given: dict[str, list[ProgramView]]
    ) -> list[ProgramView] | None:
        """A view of every node such that each lane reads what it wrote, in the order of the program. Reductions, which
        have one view, are placed first; of a node's views that one is tried first which shares most accesses."""
        steps = itertools.count()

        def views(node: ScheduleNode) -> list[ProgramView]:
            if node.name in given:
                return given[node.name]
            key = (node.name, rows, columns)
            if key not in self._programs:
                self._programs[key] = list(program_views(node, rows, columns))
            return self._programs[key]

        order = sorted(nodes, key=lambda node: (node.name not in given, node.kind != "reduction"))

        def place(chosen: list[ProgramView]) -> list[ProgramView] | None:
            if len(chosen) == len(order):
                return chosen
            known = {(a.buffer, a.index) for view in chosen for a in view.accesses}
            choices = views(order[len(chosen)])
            ranked = sorted(choices, key=lambda view: -sum((a.buffer, a.index) in known for a in view.accesses))
            for view in ranked:
                if next(steps) > MOST_STEPS:
                    return None
                if all(_agree(view, other) for other in chosen):
                    found = place([*chosen, view])
                    if found is not None:
                        return found
            return None

        found = place([])
        return found and sorted(found, key=lambda view: self.position[view.name])

    def _offence(self, pair: Pair, nodes: list[ScheduleNode], views: list[ProgramView]) -> tuple[str, str]:
        """The rule that views which fit together break all the same, and why; empty if there is none."""
        names = pair.first.names
        one = {(a.buffer, a.index) for view in views if view.name in names for a in view.accesses}
        other = {(a.buffer, a.index) for view in views if view.name not in names for a in view.accesses}
        if not one & other:
            return "index", "what they share lies in other lanes"
        members = tuple(view.node for view in views)
        rows, columns = views[0].rows, views[0].columns
        if not any(node.kind == "reduction" for node in nodes):
            wants = next((n.name for n in nodes if _wants_rectangle(n)), None)
            return ("lanes", f"{wants} is coalesced by a rectangle of two loops") if wants else ("", "")
        directions = {found for m in members for a in (*m.reads, *m.writes) if (found := _direction(a))}
        if len(directions) > 1:
            return "lanes", "neighbouring elements lie along rows and across them"
        full = any(map(is_full, members))
        if full and rows < self.device.multiprocessors // 2 and columns > LONG_ROW:
            return "rows", f"{rows} program instances for {self.device.multiprocessors} multiprocessors"
        along = "across" not in directions
        if full and not (along and residence("", members, columns, self.layouts, self.device).choice == "persistent"):
            again = max(len(more) for _, more in arrays_of_passes(members, plan_passes(members)))
            if again > MOST_READ_AGAIN:
                return "registers", f"a row of {columns} is not held, and a later pass would read {again} arrays again"
        return "", ""

    def needs_memory(self, views: tuple[ProgramView, ...], wanted: frozenset[str]) -> frozenset[str]:
        """No buffer that only members read: it is in registers, or made again."""
        return frozenset()


def _agree(one: ProgramView, other: ProgramView) -> bool:
    """Whether each reads of the other what its own lane wrote."""
    for writer, reader in ((one, other), (other, one)):
        for wrote in writer.node.writes:
            if any(a.buffer == wrote.buffer and a.index != wrote.index for a in reader.node.reads):
                return False
    return True


def step_along(index: Expr, name: str) -> int:
    """How far apart in memory neighbours along the rows or columns lie, where no loop that makes them up ends."""
    here = {symbol.name: 0 for symbol in index.symbols}
    return int(index.evaluate(here | {name: 1})) - int(index.evaluate(here)) if name in here else 0


def _direction(access: MemoryAccess) -> str:
    """The direction in which alone an elementwise access meets neighbours in memory, or one and the same element."""
    if not _is_elementwise(access):
        return ""
    along, across = (step_along(access.index, name) in (0, 1) for name in (COLUMN, ROW))
    return "" if along == across else "along" if along else "across"


def _wants_rectangle(node: ScheduleNode) -> bool:
    """Whether an access steps by one along another loop than the innermost (Example 6.1)."""
    assert node.body is not None
    *outer, inner = node.body.indices or (Symbol(ROW, 0, 0),)
    for access in (*node.reads, *node.writes):
        along = access.index.coefficient(inner)
        if along is not None and along.is_constant and int(along) not in (0, 1):
            if any(access.index.coefficient(loop) == 1 for loop in outer):
                return True
    return False


def _product(extents: Iterator[int]) -> int:
    count = 1
    for extent in extents:
        count *= extent
    return count
