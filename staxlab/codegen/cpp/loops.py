"""Writing the loops around a body: pointwise kernels and reductions (Sections 8.1 and 8.3).

A kernel is its loop nest plus one innermost body, the recorded compute function. The body appears once in the source:
inline where it is used once, otherwise as the local function ``element``, which is called for whole vectors and for
the masked tail alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...loops.body import LoopBody
from ...loops.expressions import Symbol
from ...loops.ops import compute_dtype
from ...provenance import CodeWriter, Origins
from ...schedule.records import ScheduleNode
from .plan import LoopPlan, extent
from .values import CppOps, CppValue, Scope


@dataclass
class Emission:
    """Everything one kernel's writer needs: the node, the plan, the output so far."""

    node: ScheduleNode
    plan: LoopPlan
    scope: Scope
    writer: CodeWriter

    @property
    def body(self) -> LoopBody:
        assert self.node.body is not None
        return self.node.body

    @property
    def origins(self) -> Origins:
        return self.node.origins

    @property
    def own(self) -> Origins:
        """The origins of the reduction itself, as opposed to those of what it reduces."""
        return (self.node.origins - self.body.origins) or self.node.origins

    def tail(self) -> int:
        """Elements left over after the last whole vector."""
        innermost = self.plan.innermost
        return extent(innermost) % self.plan.lanes if innermost is not None else 0

    def whole(self) -> int:
        innermost = self.plan.innermost
        return extent(innermost) - self.tail() if innermost is not None else 0

    def emit(self, text: str, origins: Origins | None = None) -> None:
        self.writer.emit(text, self.origins if origins is None else origins)

    def handler(self, lanes_text: str | None) -> CppOps:
        """A C++ handler, whose lines wait in ``scope.writers``."""
        return CppOps(self.scope, lanes_text)

    def replay(self, lanes_text: str | None) -> tuple[CppOps, CppValue]:
        """Run the body under the C++ handler."""
        handler = self.handler(lanes_text)
        return handler, self.body.replay(handler)

    def flush(self, level: int) -> None:
        """Write the lines that belong directly inside the ``level``-th loop."""
        self.writer.extend(self.scope.writers[level].lines())

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.emit(head)
        with self.writer.indent():
            yield
        self.emit("}")


def levels(outer: tuple[Symbol, ...], collapsed: int) -> dict[Symbol, int]:
    """The loop inside which each outer index is known. Between loops that are one parallel loop no code may stand."""
    return {symbol: max(position + 1, collapsed) for position, symbol in enumerate(outer)}


def for_loop(symbol: Symbol, step: int = 1, stop: int | None = None) -> str:
    name = symbol.name
    advance = f"++{name}" if step == 1 else f"{name} += {step}"
    return f"for (i64 {name} = 0; {name} < {extent(symbol) if stop is None else stop}; {advance}) {{"


def pragma(emission: Emission, loops: int) -> None:
    """Announce that the next ``loops`` loops are one parallel loop, divided among threads once and for all."""
    clauses = "" if loops == 1 else f" collapse({loops})"
    if emission.scope.checks:
        clauses += " reduction(max : failure)"
    emission.emit(f"#pragma omp parallel for{clauses} schedule(static)")


@contextlib.contextmanager
def outer_loops(emission: Emission, extra_parallel: int = 0) -> Iterator[None]:
    """The loops of ``plan.outer``, the first ``plan.parallel`` of them parallel (with ``extra_parallel`` more loops
    that follow immediately)."""
    plan = emission.plan
    emission.flush(0)
    with contextlib.ExitStack() as stack:
        if plan.parallel:
            pragma(emission, plan.parallel + extra_parallel)
        for position, symbol in enumerate(plan.outer):
            stack.enter_context(emission.block(for_loop(symbol)))
            emission.flush(position + 1)
        yield


def captures(emission: Emission) -> str:
    return "[=, &failure]" if emission.scope.checks else "[=]"


# ---- Pointwise -----------------------------------------------------------------------------------------------------


def write_pointwise(emission: Emission) -> None:
    """Loops around a body that stores one vector (or element) per iteration."""
    plan, innermost = emission.plan, emission.plan.innermost
    tail, whole = emission.tail(), emission.whole()
    write = emission.node.writes[0]
    only_tail = whole == 0 and tail > 0
    several = tail > 0 and whole > 0
    lanes_text = f"first<{tail}>" if only_tail else "lanes" if several else None
    handler, result = emission.replay(lanes_text)
    if emission.node.kind == "reduction":
        result = _reduced_single(emission, handler, result)
    handler.tagged(emission.origins).store(write.buffer, write.index, result)
    last = len(emission.scope.writers) - 1
    along = plan.parallel_innermost and not only_tail and innermost is not None
    with outer_loops(emission, extra_parallel=1 if along else 0):
        if innermost is None:
            emission.flush(last)
        elif only_tail:
            with emission.block("{"):
                emission.emit(f"const i64 {innermost.name} = 0;")
                emission.flush(last)
        elif not several:
            if along and not plan.parallel:
                pragma(emission, 1)
            with emission.block(for_loop(innermost, plan.lanes)):
                emission.flush(last)
        elif along:
            # The last vector is a partial one; deciding that inside keeps one loop that threads can share.
            if not plan.parallel:
                pragma(emission, 1)
            with emission.block(for_loop(innermost, plan.lanes)):
                element_function(emission, last, "", "void")
                emission.emit(f"if ({innermost.name} < {whole}) element(all_lanes);")
                emission.emit(f"else element(first<{tail}>);")
        else:
            element_function(emission, last, f"i64 {innermost.name}, ", "void")
            emission.emit(
                f"for (i64 {innermost.name} = 0; {innermost.name} < {whole}; {innermost.name} += {plan.lanes})"
            )
            with emission.writer.indent():
                emission.emit(f"element({innermost.name}, all_lanes);")
            emission.emit(f"element({whole}, first<{tail}>);")


def _reduced_single(emission: Emission, handler: CppOps, value: CppValue) -> CppValue:
    """A reduction of exactly one element per output: the element itself, or position 0."""
    node = emission.node
    if node.reduction in ("argmax", "argmin"):
        return handler.constant(0, torch.int64)
    if compute_dtype(node.store_dtype) != value.dtype:
        return handler.tagged(emission.origins).to_dtype(value, node.store_dtype)
    return value


def element_function(emission: Emission, level: int, parameters: str, result: str, returned: str = "") -> None:
    """The innermost body as a local function of the lanes that take part."""
    arguments = f"{parameters}auto lanes"
    head = f"const auto element = {captures(emission)}({arguments}) __attribute__((always_inline))"
    emission.emit(f"{head} {{" if result == "void" else f"{head} -> {result} {{")
    with emission.writer.indent():
        emission.flush(level)
        if returned:
            emission.emit(f"return {returned};")
    emission.emit("};")
