"""How many bytes a thread has on their way before it must wait, read off the machine code (Section 9.1).

A GPU issues the instructions of a warp in order. A load does not wait for its data: the warp goes on until an
instruction *reads* a register that a load has not filled yet. So the independent loads of a thread are those that the
assembler managed to put before the first use of their results, and the machine code says which they are. That a kernel
loads four vectors is one thing; that the second pair stands behind a barrier which needs the first pair is another.

The listing is walked from top to bottom, the body of a loop twice. A load becomes outstanding where it stands; an
instruction that reads or overwrites a register of it ends it. What is counted is an upper bound: a thread never has
more on its way.

A software pipeline (Section 9.8) copies from global to shared memory without registers: such copies are committed in
groups, and an instruction waits until no more than so many groups are left. Tiles that the tensor memory accelerator
fetches are asked for by one thread for all; they are not counted here, and the result says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..codegen.kernel import Kernel
from ..codegen.triton.listings import sass_lines

_INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?(?P<name>[A-Z][A-Z0-9_.]*)\s*(?P<operands>.*);")
_REGISTER = re.compile(r"\bR(\d+)\b(\.64)?")
_BITS = re.compile(r"\.(?:[US])?(8|16|32|64|128|256)\b")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_MODIFIERS = re.compile(r"\.(?:reuse|H0_H0|H1_H1|F32|B\d)")


@dataclass(frozen=True)
class MemoryInstruction:
    """A load or store of global memory in the machine code: position in the listing, ``bytes`` of one thread;
    ``is_copy``: a load that goes to shared memory and fills no register."""

    position: int
    is_load: bool
    bytes: int
    registers: tuple[int, ...]
    is_copy: bool = False


@dataclass(frozen=True)
class LoadsInFlight:
    """What one thread can have on its way: at most ``bytes``, in ``loads`` instructions; ``issued``: bytes that all
    load instructions of the text fetch; ``stalls``: the positions of the instructions that wait for a load;
    ``by_accelerator``: instructions that fetch whole tiles, whose bytes are not among these."""

    bytes: int
    loads: int
    issued: int
    stalls: tuple[int, ...]
    by_accelerator: int = 0


def bytes_of(name: str) -> int:
    """Bytes that one thread moves by an instruction called ``name``, as LDG.E.128: 4 if no width is written."""
    found = _BITS.findall(name)
    return int(found[-1]) // 8 if found else 4


def memory_instruction(name: str, operands: str, position: int) -> MemoryInstruction | None:
    """A load or store of global memory, or None for every other instruction."""
    kind = name.split(".")[0]
    if kind == "LDGSTS":
        off = operands.rstrip().endswith("!PT")  # switched off by a predicate that is never true
        return MemoryInstruction(position, True, 0 if off else bytes_of(name), (), is_copy=True)
    if kind not in ("LDG", "LD", "STG", "ST"):
        return None
    size = bytes_of(name)
    is_load = kind.startswith("L")
    place = operands.split(",")[0] if is_load else operands.rsplit(",", 1)[-1]
    found = _REGISTER.search(place)
    registers = tuple(range(int(found[1]), int(found[1]) + max(size // 4, 1))) if found else ()
    return MemoryInstruction(position, is_load, size, registers)


def read_in_flight(texts: Iterable[str]) -> LoadsInFlight:
    """The same from the text of a listing, line by line."""
    lines = list(texts)
    labels = {text.strip().rstrip(":"): place for place, text in enumerate(lines) if text.strip().endswith(":")}
    outstanding: dict[int, MemoryInstruction] = {}  # register -> the load that will fill it
    groups: list[list[int]] = [[]]  # bytes of the copies of each group that is not waited for yet, the open one last
    most = (0, 0)
    fetched: dict[int, int] = {}
    stalls: list[int] = []
    turned: set[int] = set()  # branches that have been followed backwards once
    position = 0
    while position < len(lines):
        here, position = position, position + 1
        found = _INSTRUCTION.search(lines[here])
        if found is None:
            continue
        operands = _MODIFIERS.sub("", found["operands"])
        memory = memory_instruction(found["name"], operands, here)
        touched = _registers(operands) | set(memory.registers if memory else ())
        waited_for = {outstanding[r] for r in touched if r in outstanding}
        if waited_for:
            stalls.append(here)
            outstanding = {r: load for r, load in outstanding.items() if load not in waited_for}
        if found["name"] == "LDGDEPBAR":
            groups.append([])
        elif found["name"].startswith("DEPBAR.LE"):
            left = int(found["operands"].rsplit(",", 1)[-1].split("{")[0].strip(), 16)
            if any(groups[: max(len(groups) - 1 - left, 0)]):
                stalls.append(here)
            groups = groups[max(len(groups) - 1 - left, 0) :]
        if memory is not None and memory.is_load and memory.bytes:
            fetched[here] = memory.bytes
            outstanding |= dict.fromkeys(memory.registers, memory)
            if memory.is_copy:
                groups[-1].append(memory.bytes)
            sizes = [load.bytes for load in set(outstanding.values())] + [size for group in groups for size in group]
            most = max(most, (sum(sizes), len(sizes)))
        target = _TARGET.search(found["operands"]) if found["name"].startswith("BRA") else None
        if target and here not in turned and labels.get(target[1], here) < here - 1:
            turned.add(here)
            position = labels[target[1]]
    tiles = sum("UTMALDG" in text or "UBLKCP" in text for text in lines)
    return LoadsInFlight(most[0], most[1], sum(fetched.values()), tuple(dict.fromkeys(stalls)), tiles)


def _registers(operands: str) -> set[int]:
    found = set()
    for number, wide in _REGISTER.findall(operands):
        found |= {int(number), int(number) + 1} if wide else {int(number)}
    return found


def loads_in_flight(kernel: Kernel, capability: int | None = None) -> LoadsInFlight:
    """What a thread of a Triton kernel has on its way at most. Raises as :func:`sass_lines` does."""
    return read_in_flight(line.text for line in sass_lines(kernel, capability))
