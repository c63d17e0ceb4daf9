"""Machine code of a kernel, every instruction with the user's operations it serves (Section 8).

The compiler's debug information maps an instruction to a line, and where functions were inlined, to a chain of lines:
a comparison inside ``relu`` inside the loop body. The innermost line of the chain that lies in the *generated* source
is the statement the instruction belongs to, and a generated line knows its origins. So the way from
``torch.relu(x + w)`` to ``vcmpnltps`` is a lookup, never a guess from text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from ..codegen.kernel import Assembly, Kernel
from ..errors import BuildError, OptionError
from ..provenance import NO_ORIGINS, Line
from . import toolchain
from .build import HEADER_DIRECTORY, command_flags

KINDS = {"cpp": ("asm",), "triton": ("ptx", "sass", "ttir", "ttgir", "llir")}


def disassemble(kernel: Kernel, kind: str | None = None) -> Assembly:
    """The listing of a kernel: "asm" for C++; for Triton "ptx" (the default) or "sass", or one of the representations
    before them: "ttir", "ttgir", "llir".

    Raises OptionError for a kind the language does not have, BuildError without a compiler, MissingDependencyError
    without Triton.
    """
    if kernel.inner:  # a call of kernels of our own
        listings = [disassemble(inner, kind) for inner in kernel.inner]
        return Assembly(kernel.name, listings[0].kind, tuple(line for found in listings for line in found.lines))
    kinds = KINDS.get(kernel.language)
    if kinds is None:
        raise OptionError(f"{kernel.name} is an {kernel.language} call; it has no machine code of its own")
    kind = kind or kinds[0]
    if kind not in kinds:
        raise OptionError(f"{kernel.name} has no {kind!r} listing", remedy=f"choose {', '.join(kinds)}")
    if kernel.language == "cpp":
        return Assembly(kernel.name, kind, _cpp_listing(kernel))
    from ..codegen.triton import listings

    return Assembly(kernel.name, kind, listings.listing_lines(kernel, kind))


def _cpp_listing(kernel: Kernel) -> tuple[Line, ...]:
    tools = toolchain.find()
    flags = command_flags(kernel, tools)
    objdump = _gnu_objdump(shutil.which("objdump"))
    with tempfile.TemporaryDirectory(prefix="staxlab-assembly-") as work:
        source = Path(work) / f"{kernel.name}.cpp"
        source.write_text(kernel.source, encoding="utf-8")
        target = Path(work) / ("kernel.o" if objdump else "kernel.s")
        step = "-c" if objdump else "-S"
        _run([*tools.command, *flags, "-g1", f"-I{HEADER_DIRECTORY}", step, str(source), "-o", str(target)])
        if objdump is None:
            return parse_compiler_output(target.read_text(encoding="utf-8"), kernel, source.name)
        text = _run([objdump, "-d", "-l", "-r", "--inlines", "--no-show-raw-insn", "-C", str(target)])
        return parse_objdump(text, kernel, source.name)


@lru_cache(maxsize=4)
def _gnu_objdump(path: str | None) -> str | None:
    """The program if it is GNU's: LLVM's (macOS has it under the same name) does not follow inlined functions."""
    if path is None:
        return None
    version = subprocess.run([path, "--version"], capture_output=True, text=True)
    return path if "GNU" in version.stdout else None


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise BuildError(f"{os.path.basename(command[0])} failed: {result.stderr.strip()[:2000]}")
    return result.stdout


_POSITION = re.compile(r"^(?:inlined by )?(\S.*?):(\d+)(?: \(.*\))?$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S.*)$")
_LABEL = re.compile(r"^[0-9a-f]+ <(.*)>:$")
_RELOCATION = re.compile(r"^\s*[0-9a-f]+: R_\S+\s+(\S+)$")


def parse_objdump(text: str, kernel: Kernel, file: str) -> tuple[Line, ...]:
    """Lines of ``objdump -d -l -r --inlines``: labels and instructions; positions become origins."""
    lines: list[Line] = []
    chain: list[int | None] = []
    fresh = True  # the next position starts a new chain
    shown: int | None = None
    in_kernel = False
    for raw in text.splitlines():
        label = _LABEL.match(raw)
        if label:
            in_kernel = kernel.name in label[1]
            if in_kernel:
                part = " (parallel part)" if "_omp_fn" in label[1] else ""
                lines.append(Line(f"{kernel.name}{part}:", kernel.origins))
            shown = None
            continue
        if not in_kernel:
            continue
        relocation = _RELOCATION.match(raw)
        if relocation:
            if lines and lines[-1].text.split()[1:2] == ["call"]:
                last = lines.pop()
                lines.append(Line(f"{last.text.split('call')[0]}call   {_symbol(relocation[1])}", last.origins))
            continue
        instruction = _INSTRUCTION.match(raw)
        if instruction:
            source = next((number for number in chain if number is not None), None)
            body = re.sub(r"\s*#.*$", "", instruction[2]).replace("\t", " ")
            body = re.sub(r"<[^>]*>", "", body).rstrip()
            note = ""
            if source is not None and source != shown:
                note, shown = f"# {source}: {kernel.lines[source - 1].text.strip()}", source
            text_ = f"{instruction[1]:>6}:  {body}"
            lines.append(Line(f"{text_:<60}{note}".rstrip()[:150], _origins(kernel, source)))
            fresh = True
            continue
        position = _POSITION.match(raw)
        if position:
            if fresh or not raw.startswith("inlined by "):
                chain, fresh = [], False
            chain.append(int(position[2]) if os.path.basename(position[1]) == file else None)
    return tuple(lines)


def _symbol(relocation: str) -> str:
    return re.sub(r"[-+]0x[0-9a-f]+$", "", relocation)


def _origins(kernel: Kernel, source: int | None) -> frozenset[int]:
    if source is None or not 1 <= source <= len(kernel.lines):
        return NO_ORIGINS
    return kernel.lines[source - 1].origins


#: Labels inside a function that jumps go to: GNU's, and LLVM's on Linux and macOS.
_JUMPED_TO = re.compile(r"\.L\d+|\.?LBB\d+_\d+")


def parse_compiler_output(text: str, kernel: Kernel, file: str) -> tuple[Line, ...]:
    """Lines of the compiler's own assembly (where there is no GNU objdump): ``.loc`` directives give the line, those
    inside headers are attributed to the last generated line before them."""
    files: set[str] = set()
    lines: list[Line] = []
    source: int | None = None
    for raw in text.splitlines():
        declared = re.match(r"\s*\.file\s+(\d+)\s+(.*)$", raw)
        if declared and file in declared[2]:
            files.add(declared[1])
        located = re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", raw)
        if located and located[1] in files:
            source = int(located[2])
        stripped = raw.strip()
        if re.match(r"\s*\.section\s+(\.debug|__DWARF)", raw):
            break
        label = re.match(r"([\w.$@]+):(\s|$)", stripped)
        if label:
            if _JUMPED_TO.fullmatch(label[1]) or not label[1].startswith((".", "L")):
                lines.append(Line(f"{label[1]}:", _origins(kernel, source)))
            continue
        if not stripped or stripped.startswith((".", "#", "//", ";")):
            continue
        lines.append(Line(raw.replace("\t", " "), _origins(kernel, source)))
    return tuple(lines)
