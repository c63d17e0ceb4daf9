"""How the loops of a kernel are shared among threads (Section 8.3, Algorithm 8.1).

Threads cost something to start, so a region is shared only if each gets enough to do; and the iterations that are dealt
out come in whole numbers, so some threads may get one more than others. Algorithm 8.1 takes loops from the outside in
until there are at least ``2P`` iterations for ``P`` threads, which bounds the waste: the busiest thread has
``ceil(q/P)`` of ``q`` iterations, at most ``3/2`` of the average once ``q >= 2P``.

:func:`parallel_depth` is the algorithm as the course has it, over extents. :func:`sharing` says what was done to a
kernel, from its plan. Threads get one contiguous block each (OpenMP's static schedule), the first ``q mod P`` of them
one iteration more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ...errors import OptionError
from ...options import Decision
from ..kernel import Kernel, PlannedLoops
from .plan import GRAIN, STRIP_BYTES, LoopPlan, extent
from .product_plan import ProductPlan
from .tiles import block_of
from .types import element_bytes


@dataclass(frozen=True)
class SharedLoop:
    """A loop around the body: ``iterations``, and whether they are dealt out to threads."""

    name: str
    iterations: int
    shared: bool


@dataclass(frozen=True)
class Step:
    """One loop looked at by Algorithm 8.1: ``product`` of the extents taken so far, ``left`` of sequential work for
    each thread (iterations), and the decision about the loop with its reason."""

    loop: int
    product: int
    left: float
    taken: bool
    reason: str


@dataclass(frozen=True)
class Depth:
    """The outcome of Algorithm 8.1: ``depth`` loops are taken, with ``iterations`` in all, and a reason for each."""

    depth: int
    iterations: int
    threads: int
    grain: float
    extents: tuple[int, ...]
    steps: tuple[Step, ...]

    def summary(self) -> str:
        taken = f"{self.depth} of {len(self.extents)} loops are taken"
        return f"{taken}: q = {self.iterations:,} iterations for P = {self.threads}, m = {self.grain:g}"

    def rows(self) -> list[list[str]]:
        """A row for each loop looked at: its extent, the product before it, what is left per thread, the decision."""
        return [
            [f"{step.loop}", f"{self.extents[step.loop]:,}", f"{step.product:,}", f"{step.left:,.6g}",
             "taken" if step.taken else "stop", step.reason]
            for step in self.steps
        ]  # fmt: skip

    def format(self) -> str:
        """The steps as a table."""
        table = [["loop", "extent", "product so far", "left per thread", "", "why"], *self.rows()]
        widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
        return "\n".join([f"Algorithm 8.1: {self.summary()}", *lines])

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ...view import mimebundle

        return mimebundle(self)


def parallel_depth(extents: Sequence[int], threads: int, grain: float) -> Depth:
    """Algorithm 8.1 over loops with these extents, outermost first: how many are shared among ``threads``.

    Before each loop: stop if the product of the extents taken is ``2 * threads`` or more, or if the sequential work
    still inside, divided among the threads, is below ``grain``. O(loops). OptionError for fewer than one thread.

    >>> parallel_depth((4, 4096, 16), 8, 512).depth
    2
    """
    if threads < 1:
        raise OptionError(f"loops are shared among 1 thread or more, not {threads}")
    product, inside, steps = 1, 1, []
    for size in extents:
        inside *= size
    depth = 0
    for number, size in enumerate(extents):
        left = inside / threads
        if product >= 2 * threads:
            steps.append(Step(number, product, left, False, f"{product} iterations are enough: 2P = {2 * threads}"))
            break
        if left < grain:
            reason = f"{left:g} iterations for each thread are fewer than the grain, {grain:g}"
            steps.append(Step(number, product, left, False, reason))
            break
        steps.append(Step(number, product, left, True, f"{product} so far, fewer than 2P = {2 * threads}"))
        depth, product, inside = depth + 1, product * size, inside // size if size else 0
    return Depth(depth, product if depth else 1, threads, grain, tuple(extents), tuple(steps))


def imbalance(iterations: int, threads: int) -> Fraction:
    """``ceil(q/P) / (q/P)``: how much longer the busiest thread works than the average; 1 for none at all."""
    if iterations < 1 or threads < 1:
        return Fraction(1)
    return Fraction(-(-iterations // threads) * threads, iterations)


@dataclass(frozen=True)
class Sharing:
    """How a kernel's loops are shared among ``threads``. ``loops`` from the outside in, ``work`` in vector operations,
    and the compiler's own ``decision``. ``members`` run inside one after the other, if there are several."""

    kernel: str
    loops: tuple[SharedLoop, ...]
    threads: int
    work: int
    grain: int
    decision: Decision | None
    members: tuple[str, ...] = ()

    @property
    def iterations(self) -> int:
        """Iterations that are dealt out (``q``); 1 where everything runs on one thread."""
        count = 1
        for loop in self.loops:
            count *= loop.iterations if loop.shared else 1
        return count

    @property
    def parallel(self) -> bool:
        return any(loop.shared for loop in self.loops)

    @property
    def shares(self) -> tuple[int, ...]:
        """Iterations of each thread."""
        if not self.parallel:
            return (1, *(0 for _ in range(self.threads - 1)))
        each, more = divmod(self.iterations, self.threads)
        return tuple(each + (thread < more) for thread in range(self.threads))

    @property
    def imbalance(self) -> Fraction:
        return imbalance(self.iterations, self.threads) if self.parallel else Fraction(self.threads)

    def with_threads(self, threads: int) -> Sharing:
        """The same loops for another number of threads (the compiler might take other loops then). OptionError for
        fewer than one."""
        if threads < 1:
            raise OptionError(f"loops are shared among 1 thread or more, not {threads}")
        return replace(self, threads=threads)

    def summary(self) -> str:
        if not self.parallel:
            return f"one thread of {self.threads} does everything"
        share = f"q = {self.iterations:,} iterations for P = {self.threads}"
        return f"{share}: the busiest thread does {float(self.imbalance):.3g} of the average"

    def format(self) -> str:
        """Loops, shares and reason as text."""
        lines = [f"threads of {self.kernel}: {self.summary()}"]
        for depth, loop in enumerate(self.loops):
            what = "shared among threads" if loop.shared else "inside one thread"
            lines.append(f"  {'  ' * depth}for {loop.name}: {loop.iterations:,} iterations, {what}")
        grain = (
            f"{self.work / self.threads:,.0f} vector operations for each thread, of {self.grain:,} that are worth one"
        )
        lines.append(f"  {grain}")
        shares = [f"{count:,}" for count in self.shares[:8]]
        lines.append(f"  iterations per thread: {', '.join(shares)}{', ...' if len(self.shares) > 8 else ''}")
        if self.decision is not None:
            lines.append(f"  {self.decision.reason}")
        return "\n".join(lines)

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ...view import mimebundle

        return mimebundle(self)


def sharing(kernel: Kernel) -> Sharing:
    """How a C++ kernel is shared among threads, from its plan. OptionError for other languages, and for a kernel that
    has nothing to compute."""
    if kernel.language != "cpp" or not kernel.planned:
        raise OptionError(
            f"{kernel.name} has no loops that threads of a CPU share", remedy="look at a C++ kernel of target='cpu'"
        )
    decision = next((d for d in reversed(kernel.decisions) if d.topic == "parallel-depth"), None)
    work = int(kernel.launch.get("work", 0))
    rows = dict(decision.inputs).get("rows") if decision else None
    if rows is not None:  # several nodes over common rows
        shared = bool(kernel.launch["parallel"])
        loops: tuple[SharedLoop, ...] = (SharedLoop("row", int(rows), shared),)
    else:
        loops = shared_loops(kernel.planned[0])
    members = tuple(part.node.name for part in kernel.planned) if rows is not None else ()
    return Sharing(kernel.name, loops, max(kernel.device.threads, 1), work, round(GRAIN), decision, members)


def shared_loops(part: PlannedLoops) -> tuple[SharedLoop, ...]:
    """The loops of one node as its writer nests them, from the outside in, with those that are one parallel loop."""
    plan, node = part.plan, part.node
    if isinstance(plan, ProductPlan):
        return _product(part, plan)
    if node.kind == "scatter":
        return _scatter(plan)
    reduced = node.body is not None and bool(node.body.reduction_indices)
    if node.kind == "scan" and reduced:
        return _scan(plan)
    taken = plan.parallel if plan.is_parallel else 0
    loops = [SharedLoop(s.name, extent(s), number < taken) for number, s in enumerate(plan.outer)]
    if plan.tile is not None and plan.vector is not None:
        size = block_of(plan.tile, plan.vector)
        loops = [SharedLoop(loop.name, loop.iterations, plan.is_parallel) for loop in loops]
        for symbol in (plan.tile, plan.vector):
            loops.append(SharedLoop(f"{symbol.name}_block", -(-extent(symbol) // size), plan.is_parallel))
        return tuple(loops)
    if plan.strips and plan.innermost is not None and node.accumulate_dtype is not None:
        loops = [SharedLoop(loop.name, loop.iterations, plan.is_parallel) for loop in loops]
        vectors = -(-extent(plan.innermost) // plan.lanes)
        width = STRIP_BYTES // (element_bytes(node.accumulate_dtype) * plan.lanes)
        loops.append(SharedLoop("piece", plan.chunks, plan.is_parallel))
        loops.append(SharedLoop("strip", -(-vectors // width), plan.is_parallel))
        return tuple(loops)
    if plan.form == "inner" and plan.chunks > 1:
        loops.append(SharedLoop("piece", plan.chunks, plan.is_parallel))
    return (*loops, *_innermost(plan))


def _innermost(plan: LoopPlan) -> tuple[SharedLoop, ...]:
    """The reduced loops, and the innermost one in steps of whole vectors."""
    inner = tuple(SharedLoop(s.name, extent(s), False) for s in plan.inner)
    if plan.innermost is None:
        return inner
    width = plan.lanes * plan.accumulators
    along = plan.is_parallel and plan.parallel_innermost
    blocks = -(-extent(plan.innermost) // width)
    if plan.form == "outer" and along:  # what is left behind the last whole block is no part of the shared loop
        blocks = max(extent(plan.innermost) // width, 1)
    last = SharedLoop(plan.innermost.name, blocks, along)
    return (last, *inner) if plan.form == "outer" else (*inner, last)


def _scan(plan: LoopPlan) -> tuple[SharedLoop, ...]:
    """Strips of running vectors that go down the axis, or a few rows at a time that go along it."""
    along = plan.is_parallel and plan.parallel_innermost
    taken = plan.parallel if plan.is_parallel else 0
    loops = [SharedLoop(s.name, extent(s), number < taken) for number, s in enumerate(plan.outer)]
    if plan.form == "outer" and plan.innermost is not None:
        vectors = -(-extent(plan.innermost) // plan.lanes)
        loops.append(SharedLoop("strip", -(-vectors // plan.accumulators), along))
        return (*loops, *(SharedLoop(s.name, extent(s), False) for s in plan.inner))
    if plan.tile is not None:
        loops.append(SharedLoop(plan.tile.name, -(-extent(plan.tile) // plan.accumulators), along))
    if plan.innermost is not None:
        loops.append(SharedLoop(plan.innermost.name, extent(plan.innermost), False))
    return tuple(loops)


def _scatter(plan: LoopPlan) -> tuple[SharedLoop, ...]:
    """Pieces of a loop whose iterations never meet; without one, a scatter runs on one thread."""
    loops = [SharedLoop("piece", plan.chunks, True)] if plan.split is not None else []
    symbols = (*plan.outer, *((plan.innermost,) if plan.innermost is not None else ()))
    for symbol in symbols:
        count = plan.chunk if symbol == plan.split else extent(symbol)
        step = plan.lanes if symbol == plan.innermost else 1
        loops.append(SharedLoop(symbol.name, -(-count // step), False))
    return tuple(loops)


def _product(part: PlannedLoops, plan: ProductPlan) -> tuple[SharedLoop, ...]:
    """Products of a batch, or the blocks of one product."""
    body = part.node.body
    indices = body.indices if body is not None else ()
    batch = [
        SharedLoop(s.name, extent(s), plan.share == "batch") for s in indices if s not in (plan.along, plan.across)
    ]
    blocks = ((plan.along, plan.vectors * plan.lanes), (plan.across, plan.rows))
    return (*batch, *(SharedLoop(f"{s.name} blocks", -(-extent(s) // w), plan.share == "blocks") for s, w in blocks))
