"""What each step of Triton's compiler made of a kernel, every line with the captured nodes it stems from (Sections 9.2
and 11).

PTX carries ``.loc file line column`` directives and machine code a line table; a line of the kernel text carries
origins; so every instruction has origins too. Two corrections are needed before a reader can trust them:

* An instruction inlined from a library function (``tl.sum``) has a position in Triton's own file, together with the
  place it was inlined at, possibly several deep. It belongs to the line of the kernel that called it.
* Triton writes loads and stores as inline assembly of several lines, and LLVM numbers those lines onward from the first
  one, so that the load itself seems to come from some later line. Only the first position in such a block is real.

So the positions in the PTX are rewritten, and the machine code that is shown is assembled again from that text: the
same instructions as those that run, with an honest line table. The representations before the PTX carry tables of
their own (:mod:`.locations`).
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from ...errors import BuildError
from ...provenance import Line
from ..kernel import Kernel
from .compile import aot_compile, assemble, tool
from .locations import Numbered, numbered_llvm, numbered_mlir, with_origins

_LOCATION = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:[^/]*?inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+(?:"[^"]*"\s+)?"([^"]*)"', re.MULTILINE)
_PLACE = re.compile(r'//## File "([^"]*)", line (\d+)')

Position = tuple[str, int, int]  # file number, line, column

#: A copy from global to shared memory in PTX; the group is its size in bytes.
COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global\S*\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(0x[0-9a-f]+|\d+)")

LISTINGS = ("ttir", "ttgir", "llir", "ptx", "sass")


def numbered_listing(kernel: Kernel, kind: str, capability: int | None = None) -> Numbered:
    """The text of one of :data:`LISTINGS` line by line, each with the 1-based line of the kernel it belongs to.

    Raises as :func:`aot_compile` does, for "sass" also BuildError where the disassembler is missing or fails.
    """
    if kind == "sass":
        return _numbered_sass(kernel, capability)
    text = aot_compile(kernel, capability)[kind]
    if kind == "ptx":
        return _numbered_ptx(kernel, text)
    return (numbered_llvm if kind == "llir" else numbered_mlir)(kernel, text)


def listing_lines(kernel: Kernel, kind: str, capability: int | None = None) -> tuple[Line, ...]:
    """The same with the captured nodes that each line stems from."""
    return with_origins(kernel, numbered_listing(kernel, kind, capability))


def ptx_lines(kernel: Kernel, capability: int | None = None) -> tuple[Line, ...]:
    """The PTX of a kernel without its tables for debuggers. Raises as :func:`aot_compile` does."""
    return listing_lines(kernel, "ptx", capability)


def _numbered_ptx(kernel: Kernel, ptx: str) -> Numbered:
    found: Numbered = []
    current: int | None = None
    inside = False
    for raw in honest_positions(ptx, kernel).splitlines():
        stripped = raw.strip()
        if stripped.startswith((".section", ".file")):
            break  # from here on: tables for debuggers
        location = _LOCATION.match(stripped)
        if location:
            current = int(location[2]) if 0 < int(location[2]) <= len(kernel.lines) else None
        inside = (inside or stripped == "{") and stripped != "}"
        found.append((raw.replace("\t", "    "), current if inside else None))
    return found


def honest_positions(ptx: str, kernel: Kernel) -> str:
    """The PTX with every position in the kernel's own text: calls resolved, inline assembly not counted onward."""
    own = {number for number, name in _FILE.findall(ptx) if Path(name).name == f"{kernel.name}.py"}
    callers: dict[Position, Position] = {}
    kept: list[str] = []
    seen = -1  # positions met in the present block of inline assembly; -1 outside
    for line in ptx.splitlines():
        stripped = line.strip()
        if stripped.startswith("// begin inline asm"):
            seen = 0
        elif stripped.startswith("// end inline asm"):
            seen = -1
        location = _LOCATION.match(stripped)
        if location:
            seen += seen >= 0
            if seen > 1:
                continue
            resolved = _resolve(location, callers, own, kernel)
            if resolved is not None:
                line = "    .loc    {} {} {}".format(*resolved)
        kept.append(line)
    return "\n".join(kept) + "\n"


def _resolve(location: re.Match, callers: dict[Position, Position], own: set[str], kernel: Kernel) -> Position | None:
    """The innermost position, going outwards from where an instruction is written, on a line that has origins."""
    file, line, column, *caller = location.groups()
    position = (file, int(line), int(column))
    if caller[0]:
        callers[position] = (caller[0], int(caller[1]), int(caller[2]))
    chain = [position]
    while chain[-1] in callers and callers[chain[-1]] not in chain:
        chain.append(callers[chain[-1]])
    if own and len(chain) == 1:
        # Older Triton names the callers only in the comment: "standard.py:263:15 @[ kernel.py:24:24 ]".
        named = re.findall(rf"@\[ {re.escape(kernel.name)}\.py:(\d+):(\d+)", location.string)
        chain += [(min(own), int(number), int(place)) for number, place in named]
    return next((p for p in chain if p[0] in own and _has_origins(kernel, p[1])), None)


def _has_origins(kernel: Kernel, number: int) -> bool:
    """Whether a 1-based line of the kernel's text knows where it comes from."""
    return 0 < number <= len(kernel.lines) and bool(kernel.lines[number - 1].origins)


def sass_lines(kernel: Kernel, capability: int | None = None) -> tuple[Line, ...]:
    """The machine code of a kernel as ``nvdisasm`` shows it: addresses, instructions and labels.

    Raises BuildError where the disassembler is missing or fails, and otherwise as :func:`aot_compile` does.
    """
    return listing_lines(kernel, "sass", capability)


def _numbered_sass(kernel: Kernel, capability: int | None) -> Numbered:
    capability = capability or kernel.device.compute_capability
    ptx = aot_compile(kernel, capability)["ptx"]
    return _parse(disassemble_cubin(kernel, assemble(kernel, honest_positions(ptx, kernel), capability)), kernel)


def disassemble_cubin(kernel: Kernel, cubin: bytes) -> str:
    """nvdisasm's text for a cubin, with positions."""
    handle, name = tempfile.mkstemp(suffix=".cubin")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(cubin)
        run = subprocess.run([tool("nvdisasm"), "-c", "-g", name], capture_output=True, text=True)
    finally:
        os.unlink(name)
    if run.returncode:
        raise BuildError(f"nvdisasm failed on {kernel.name}: {run.stderr.strip()}")
    return run.stdout


def _parse(text: str, kernel: Kernel) -> Numbered:
    """nvdisasm prints a position before the instructions it covers."""
    found: Numbered = []
    current: int | None = None
    for raw in text.splitlines():
        stripped = raw.strip()
        place = _PLACE.match(stripped)
        if place:
            own = Path(place[1]).name == f"{kernel.name}.py"
            current = int(place[2]) if own and 0 < int(place[2]) <= len(kernel.lines) else None
            continue
        instruction = re.match(r"(/\*[0-9a-f]+\*/)\s+(.*?)\s*;", stripped)
        if instruction:
            if instruction[2] != "NOP":  # padding
                found.append((f"    {instruction[1]} {instruction[2]};", current))
        elif re.fullmatch(r"\.L_x_\d+:|\.text\.\w+:", stripped):
            found.append((stripped, None))
    while found and found[-1][0].startswith(".L_"):
        found.pop()
    return found
