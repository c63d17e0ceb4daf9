"""The inner loop of a kernel as the machine runs it, and what bounds its speed (Section 8.1).

Four limits, each in cycles per iteration, and the largest holds if everything is in the first-level cache:

- *execution ports*: micro-operations over the ports that can run them (:func:`.port_model.least_cycles`);
- *loads and stores*: the same for the ports of memory;
- *the front end*: fused micro-operations over the issue width;
- *the dependence chain*: what an iteration computes from the iteration before cannot begin earlier. The longest paths
  through the body from each register to each other make a matrix, and the bound is the largest mean weight of a cycle
  in it (Karp, 1978, "A characterization of the minimum cycle mean in a digraph").

The last one is why a sum has several accumulators: each addition of one accumulator waits for the one before, a latency
of ``L`` cycles, so ``k`` accumulators take ``L / k`` per vector, until ports or loads become the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..codegen.kernel import Kernel
from ..errors import OptionError
from ..provenance import Line, Origins
from ..specialize.report import counted
from . import port_model
from .instruction_mix import (
    ARITHMETIC,
    KINDS,
    VECTOR_KINDS,
    element_bytes,
    elements_per_iteration,
    instruction_mix,
    kind_and_group,
    memory_bytes,
    width_of,
)
from .machine_code import AARCH64, X86, Instruction, MemoryOperand, NaturalLoop, natural_loops, parse
from .port_model import Choice, PortModel, Uop

NEVER = -np.inf

#: Cycles until a load has a value that is still among the stores on their way; processors differ, few are faster.
FORWARD = 5.0


@dataclass(frozen=True)
class Bound:
    """One limit: ``cycles`` per iteration, and in words where they come from."""

    name: str
    cycles: float
    reason: str


@dataclass(frozen=True)
class Chain:
    """What an iteration takes over from the one before. ``cycles`` per iteration; ``registers`` on the slowest cycle;
    ``accumulators`` are the vector registers into which vector arithmetic merges in every iteration, ``turn`` the
    cycles that takes (where there are several kinds, as for argmax, those of the slowest). ``merges`` are the vectors
    that go into all of them in an iteration."""

    cycles: float
    registers: tuple[str, ...]
    accumulators: tuple[str, ...]
    turn: float = 0.0
    merges: int = 0


@dataclass(frozen=True)
class InnerLoop:
    """One innermost loop of a kernel: its instructions, what they are, and the bounds on its speed.

    ``machine`` is the port model with the reason it was chosen; None for AArch64, for which there is no table.
    ``itemsize`` is assumed for elements of instructions that do not name any (bytes).
    """

    kernel: str
    function: str
    instructions: tuple[Instruction, ...]
    depth: int
    architecture: str
    machine: Choice | None
    itemsize: int = 4

    # -- the mix ------------------------------------------------------------------------------------------------------

    @cached_property
    def mix(self) -> dict[tuple[str, int], int]:
        """(kind, width in bits, 0 for scalars) -> instructions per iteration."""
        return instruction_mix(self.instructions)

    def count(self, kind: str, width: int | None = None) -> int:
        """Instructions of a kind, of one width or of all. OptionError for a kind there is not."""
        if kind not in KINDS:
            raise OptionError(f"no kind {kind!r} of instruction", remedy=f"choose one of {', '.join(KINDS)}")
        return sum(n for (k, w), n in self.mix.items() if k == kind and (width is None or w == width))

    @property
    def loads(self) -> int:
        """Reads of memory by vector instructions, also those that an arithmetic instruction makes."""
        return sum(i.loads and i.width > 0 for i in self.instructions)

    @property
    def folded_loads(self) -> int:
        """Of these, the ones that arithmetic instructions make."""
        return self.loads - self.count("vector load")

    @property
    def stores(self) -> int:
        return sum(i.stores and i.width > 0 for i in self.instructions)

    @property
    def bytes_loaded(self) -> int:
        return sum(memory_bytes(i, self.itemsize) for i in self.instructions if i.loads)

    @property
    def bytes_stored(self) -> int:
        return sum(memory_bytes(i, self.itemsize) for i in self.instructions if i.stores)

    @property
    def elements(self) -> int | None:
        """Elements an iteration goes through; None where no vector touches memory."""
        return elements_per_iteration(self.instructions, self.itemsize)

    @property
    def calls(self) -> tuple[str, ...]:
        """Functions called inside, whose instructions are not counted."""
        return tuple(i.operands[0] if i.operands else "?" for i in self.instructions if i.is_call)

    @property
    def origins(self) -> Origins:
        return frozenset().union(*(i.origins for i in self.instructions))

    @property
    def lines(self) -> tuple[Line, ...]:
        """The instructions as a listing."""
        return tuple(Line(f"{i.address:>6}:  {i.text}", i.origins) for i in self.instructions)

    # -- the bounds ---------------------------------------------------------------------------------------------------

    @property
    def model(self) -> PortModel | None:
        return self.machine.model if self.machine else None

    @cached_property
    def micro_operations(self) -> tuple[tuple[str, Uop], ...]:
        """Every micro-operation with the kind of its instruction (loads and stores under their own names)."""
        model, found = self.model, []
        if model is None:
            return ()
        fused = _fused_with_branch(self.instructions)
        for instruction in self.instructions:
            kind, group = kind_and_group(instruction)
            width = width_of(instruction) or (128 if instruction.width else 0)
            if instruction not in fused:
                found += [(kind, uop) for uop in model.uops(group, width)] if kind != "gather, scatter" else []
            if kind == "prefetch" or instruction.is_call:
                continue
            accesses = 1
            if kind == "gather, scatter":
                accesses, width = instruction.width // 8 // element_bytes(instruction, self.itemsize), 0
            if instruction.loads:
                name = kind if kind in ("vector load", "gather, scatter", "scalar, address") else "vector load"
                found += [(name, uop) for uop in model.uops("load", width)] * accesses
            if instruction.stores:
                name = kind if kind == "non-temporal store" or not instruction.width else "vector store"
                found += [(name, uop) for uop in model.uops("store", width)] * accesses
        return tuple(found)

    @property
    def fused_operations(self) -> int:
        """What the front end delivers: a load stays with its arithmetic, a comparison with its jump, a store is one."""
        model = self.model
        if model is None:
            return 0
        count = 0
        fused = _fused_with_branch(self.instructions)
        for instruction in self.instructions:
            kind, group = kind_and_group(instruction)
            width = width_of(instruction) or (128 if instruction.width else 0)
            parts = sum(1 for ports, _ in model.uops(group, width) if ports != frozenset("D"))
            count += 0 if instruction in fused else max(parts, 1)
        return count

    @cached_property
    def pressure(self) -> dict[str, dict[str, float]]:
        """Port -> kind -> cycles per iteration, micro-operations spread as evenly as they may be."""
        return port_model.assign(self.micro_operations)

    @cached_property
    def chain(self) -> Chain:
        """The loop-carried dependences through registers and places in the stack frame. Other memory is not followed:
        what is stored in one iteration and loaded in the next is not seen."""
        found = _chain(self.instructions, self.model)
        named = {512: "zmm", 256: "ymm"}.get(max(i.width for i in self.instructions), "xmm")
        prefix = "v" if self.architecture == AARCH64 else named

        def spelled(registers: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(prefix + name[1:] if name[0] == "v" else name for name in registers)

        return replace(found, registers=spelled(found.registers), accumulators=spelled(found.accumulators))

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """The four limits; none without a port model."""
        model = self.model
        if model is None:
            return ()
        execution = {key for key, _ in model.ports}
        running = [uop for _, uop in self.micro_operations if uop[0] <= execution]
        memory = [uop for _, uop in self.micro_operations if not uop[0] <= execution]
        busiest = _busiest(self.pressure, model.ports)
        chain = self.chain
        where = f"through {', '.join(chain.registers)}" if chain.registers else "no register is handed on"
        width, operations = model.issue_width, counted(len(running), "micro-operation")
        return (
            Bound(
                "execution ports",
                port_model.least_cycles(running),
                f"{operations}, {busiest}",
            ),
            Bound("loads and stores", port_model.least_cycles(memory), counted(len(memory), "micro-operation")),
            Bound("front end", self.fused_operations / width, f"{self.fused_operations} fused, {width} per cycle"),
            Bound("dependence chain", chain.cycles, where),
        )

    @property
    def limit(self) -> Bound | None:
        """The largest bound."""
        return max(self.bounds, key=lambda bound: bound.cycles, default=None)

    @property
    def cycles(self) -> float | None:
        """Cycles per iteration, at least, with all data in the first-level cache."""
        return self.limit.cycles if self.limit else None

    def accumulators_table(self, counts: Sequence[int] = (1, 2, 4, 8, 16)) -> tuple[tuple[int, float, str], ...]:
        """For numbers of accumulators: cycles per vector that is merged, and which limit that is.

        The latency of one accumulator's turn, divided by the number of accumulators, against what the ports and the
        front end need for a vector, which stays as it is. Empty where nothing is accumulated.
        """
        here = len(self.chain.accumulators)
        if not here or not self.bounds:
            return ()
        latency = self.chain.turn * here / self.chain.merges
        others = {
            bound.name: bound.cycles / self.chain.merges for bound in self.bounds if bound.name != "dependence chain"
        }
        name = max(others, key=lambda key: others[key])
        rows = []
        for count in counts:
            waits = latency / count
            rows.append((count, max(waits, others[name]), "dependence chain" if waits > others[name] else name))
        return tuple(rows)

    # -- in words -----------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """One line: instructions, elements, the bound."""
        parts = [counted(len(self.instructions), "instruction")]
        if self.elements:
            parts.append(f"{counted(self.elements, 'element')} per iteration")
        if self.limit:
            parts.append(f"at least {self.limit.cycles:.3g} cycles ({self.limit.name})")
        return ", ".join(parts)

    def facts(self) -> list[str]:
        """What is known besides the counts, a sentence each."""
        vectors = f"{counted(self.loads, 'vector load')} ({self.folded_loads} inside other instructions)"
        moved = f"{self.bytes_loaded:,} bytes loaded and {self.bytes_stored:,} stored per iteration"
        found = [f"{vectors}, {counted(self.stores, 'vector store')}; {moved}"]
        if self.calls:
            found.append(
                f"it calls {counted(len(self.calls), 'function')}, whose instructions and cycles are not counted"
            )
        if self.machine:
            found.append(f"port model: {self.machine.model.title} ({self.machine.reason})")
        else:
            found.append("no port model for this architecture: the mix only")
        if self.chain.accumulators:
            names = ", ".join(self.chain.accumulators)
            found.append(f"{counted(len(self.chain.accumulators), 'accumulator')}: {names}")
        return found

    def format(self) -> str:
        """Mix, bounds and listing as text."""
        lines = [f"inner loop of {self.function or self.kernel}, depth {self.depth}: {self.summary()}"]
        for (kind, width), count in self.mix.items():
            size = f"{width} bits" if width else "scalar" if kind in VECTOR_KINDS else ""
            lines.append(f"  {count:4}  {kind:<20}{size}".rstrip())
        lines += [f"  {fact}" for fact in self.facts()]
        if self.bounds:
            lines.append("  cycles per iteration, at least:")
            lines += [f"    {bound.cycles:6.2f}  {bound.name:<18}{bound.reason}" for bound in self.bounds]
        if self.accumulators_table():
            lines.append("  cycles per vector, by number of accumulators:")
            lines += [f"    {count:4}  {cycles:6.2f}  {name}" for count, cycles, name in self.accumulators_table()]
        return "\n".join(lines)

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def _busiest(pressure: dict[str, dict[str, float]], ports: Sequence[tuple[str, str]]) -> str:
    loads = {label: sum(pressure.get(key, {}).values()) for key, label in ports}
    most = max(loads.values(), default=0.0)
    full = [label for label, cycles in loads.items() if cycles > most - 1e-6 and most > 0]
    return f"busiest: {', '.join(full)}" if full else "no port is used"


def _fused_with_branch(instructions: Sequence[Instruction]) -> set[Instruction]:
    """Comparisons and the like right before a conditional jump: one micro-operation with it on x86."""
    simple = ("cmp", "test", "add", "sub", "and", "inc", "dec")
    return {
        first
        for first, second in zip(instructions, instructions[1:], strict=False)
        if second.mnemonic.startswith("j") and second.mnemonic != "jmp" and first.mnemonic.startswith(simple)
        and first.architecture == X86 and not first.stores
    }  # fmt: skip


#: Registers that a called function may use as it likes.
_SCRATCH = frozenset(("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", *(f"x{k}" for k in range(18))))


# -- the chain ---------------------------------------------------------------------------------------------------------


def _chain(instructions: Sequence[Instruction], model: PortModel | None) -> Chain:
    slots = _stack_slots(instructions)
    carried = {id(i): (slots[i.memory],) for i in instructions if i.memory in slots}
    outputs = {id(i): (*i.writes, *(carried.get(id(i), ()) if i.stores else ())) for i in instructions}
    written = sorted({register for names in outputs.values() for register in names})
    place = {register: k for k, register in enumerate(written)}
    size = len(written)
    if not size:
        return Chain(0.0, (), ())
    # paths[r][s]: the longest way from the value of r before the iteration to that of s so far.
    paths = np.full((size, size), NEVER)
    np.fill_diagonal(paths, 0.0)
    merged = np.zeros(size, dtype=bool)  # s went through vector arithmetic
    for instruction in instructions:
        if instruction.is_call:  # what comes back is new: how long it took is not known
            lost = [place[r] for r in written if r[0] == "v" or r in _SCRATCH]
            paths[:, lost], merged[lost] = NEVER, False
        if not outputs[id(instruction)]:
            continue
        kind, group = kind_and_group(instruction)
        width = width_of(instruction) or (128 if instruction.width else 0)
        latency = float(model.latency(group, width) if model else 1)
        if kind in ("vector load", "vector store"):
            latency = 0.0  # what a load takes is counted with it; a store hands on at once
        load = float(model.load_latency[_load_width(instruction)] if model else 1) if instruction.loads else 0.0
        memory = instruction.memory
        addresses = memory.registers if memory is not None and not instruction.stores else ()
        slot = carried.get(id(instruction), ()) if instruction.loads else ()
        ways = [(r, latency) for r in instruction.reads] + [(r, latency + load) for r in addresses]
        ways += [(place_, latency + FORWARD) for place_ in slot]
        known = [paths[:, place[r]] + wait for r, wait in ways if r in place]
        new = np.max(known, axis=0) if known else np.full(size, NEVER)
        before = [merged[place[r]] for r in (*instruction.reads, *slot) if r in place]
        for register in outputs[id(instruction)]:
            own = new
            if memory is not None and memory.advance and register == memory.base:
                own = paths[:, place[register]] + 1.0  # an address that is advanced does not wait for the load
            paths[:, place[register]] = own
            merged[place[register]] = (kind in ARITHMETIC and instruction.width > 0) or any(before)
    cycles, critical = _cycle_mean(paths)
    names = tuple(written[k] for k in critical)
    turns = {r: float(paths[k, k]) for r, k in place.items() if merged[k] and r[0] in "v[" and paths[k, k] > 0}
    slowest = max(turns.values(), default=0.0)
    own = sorted((name for name, turn in turns.items() if turn == slowest), key=lambda name: (len(name), name))
    merges = sum(
        1 for i in instructions for name in outputs[id(i)]
        if name in own and (kind_and_group(i)[0] in ARITHMETIC or name[0] == "[")
    )  # fmt: skip
    return Chain(cycles, names if cycles > 0 else (), tuple(own), slowest, max(merges, len(own)))


def _stack_slots(instructions: Sequence[Instruction]) -> dict[MemoryOperand, str]:
    """Addresses in the stack frame that the loop both stores to and loads from: what is kept there is carried on."""
    frame = {"rsp", "rbp", "sp", "x29"} - {register for i in instructions for register in i.writes}
    places = [i.memory for i in instructions if i.memory is not None and i.memory.index is None]
    stored = {i.memory for i in instructions if i.stores}
    return {m: f"[{m.base}{m.displacement:+d}]" for m in places if m.base in frame and m in stored}


def _load_width(instruction: Instruction) -> int:
    return 0 if instruction.width == 0 else 128 if instruction.width <= 128 else instruction.width


def _cycle_mean(weights: np.ndarray) -> tuple[float, list[int]]:
    """The largest mean weight of a cycle (Karp's theorem), and the vertices that lie on such a cycle. O(n^3)."""
    size = len(weights)
    longest = [np.zeros(size)]  # by number of edges, from anywhere
    for _ in range(size):
        longest.append((longest[-1][:, None] + weights).max(axis=0))
    last, steps = longest[size], np.arange(size, 0, -1)[:, None]
    with np.errstate(invalid="ignore"):
        means = np.where(np.isneginf(last), NEVER, ((last - np.array(longest[:size])) / steps).min(axis=0))
    best = max(float(means.max()), 0.0)
    closure = weights - best
    for k in range(size):
        closure = np.maximum(closure, closure[:, k, None] + closure[None, k, :])
    return best, [int(k) for k in np.flatnonzero(np.diagonal(closure) > -1e-6)]


# -- from a kernel -----------------------------------------------------------------------------------------------------


def inner_loops(kernel: Kernel, machine: str | None = None) -> tuple[InnerLoop, ...]:
    """The innermost loops of a C++ kernel, hottest first: those with vectors, then the most deeply nested, then those
    with most vector instructions. (Frequencies are not measured: a loop around counts as many iterations.)

    ``machine`` names a port model (:data:`.port_model.MODELS`), by default this processor's. OptionError for a kernel
    that is not C++; errors of compilation as :meth:`Kernel.assembly`.
    """
    if kernel.language != "cpp":
        raise OptionError(
            f"{kernel.name} is {kernel.language}, and inner loops are read from x86 and Arm machine code",
            remedy="compile for target='cpu'",
        )
    itemsize = kernel.arguments[0].dtype.itemsize if kernel.arguments else 4
    return loops_of(kernel.name, kernel.assembly("asm").lines, machine, itemsize)


def loops_of(name: str, lines: Sequence[Line], machine: str | None = None, itemsize: int = 4) -> tuple[InnerLoop, ...]:
    """As :func:`inner_loops`, from a listing."""
    found: list[NaturalLoop] = []
    for function, instructions in parse(lines):
        found += [loop for loop in natural_loops(function, instructions) if loop.innermost]

    def heat(loop: NaturalLoop) -> tuple[bool, int, int]:
        vectors = sum(i.width > 0 for i in loop.instructions)
        return vectors > 0, loop.depth, vectors

    found.sort(key=heat, reverse=True)
    loops = []
    for loop in found:
        architecture = loop.instructions[0].architecture
        choice = None if architecture == AARCH64 else port_model.choose(machine)
        loops.append(InnerLoop(name, loop.function, loop.instructions, loop.depth, architecture, choice, itemsize))
    return tuple(loops)


def inner_loop(kernel: Kernel, machine: str | None = None) -> InnerLoop:
    """The hottest innermost loop; OptionError where a kernel has none (everything unrolled, or nothing to repeat)."""
    found = inner_loops(kernel, machine)
    if not found:
        raise OptionError(f"{kernel.name} has no loop in its machine code", remedy="try it on larger tensors")
    return found[0]
