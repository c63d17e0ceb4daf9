"""Machine code as data: instructions with operands, basic blocks, and the natural loops among them (Section 8.1).

A listing of :meth:`Kernel.assembly` is text. Here each line becomes an :class:`Instruction` that knows which registers
it reads and writes, which memory it touches, and where it may jump to. Jumps make a control-flow graph; an edge back to
a block that every way must pass makes a *natural loop* (Aho, Lam, Sethi and Ullman, 2006, "Compilers: Principles,
Techniques, and Tools", Section 9.6). The innermost ones are where a kernel spends its time.

x86-64 is read in AT&T syntax (the destination comes last), AArch64 as objdump and compilers write it (it comes first).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..provenance import NO_ORIGINS, Line, Origins

X86, AARCH64 = "x86-64", "AArch64"


@dataclass(frozen=True)
class MemoryOperand:
    """An address: ``displacement + base + index * scale``, and for AArch64 what ``base`` is advanced by afterwards."""

    base: str | None
    index: str | None = None
    scale: int = 1
    displacement: int = 0
    advance: int = 0

    @property
    def registers(self) -> tuple[str, ...]:
        return tuple(register for register in (self.base, self.index) if register and register != "rip")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    ``reads`` and ``writes`` are registers by their full name (``rax`` for ``eax``, ``v3`` for ``zmm3``), those of the
    address apart, in ``memory``. ``width`` is that of the widest vector register in bits, 0 without one. ``masked``:
    some lanes may be left out. ``target`` is the address or label of a jump.
    """

    address: str
    mnemonic: str
    operands: tuple[str, ...]
    architecture: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    memory: MemoryOperand | None = None
    stores: bool = False
    width: int = 0
    masked: bool = False
    target: str | None = None
    origins: Origins = NO_ORIGINS
    line: int = 0

    @property
    def loads(self) -> bool:
        """Whether elements come from memory: not for an address that is only computed, or only asked for ahead."""
        computed = self.mnemonic.startswith(("lea", "prefetch", "prfm", "nop"))
        return self.memory is not None and not self.stores and not computed and not self.is_call

    @property
    def is_branch(self) -> bool:
        return self.target is not None or self.mnemonic in _ENDS

    @property
    def is_call(self) -> bool:
        return self.mnemonic in ("call", "callq", "bl", "blr")

    @property
    def text(self) -> str:
        return f"{self.mnemonic} {','.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class NaturalLoop:
    """The instructions of a loop in the order they stand. ``depth`` counts the loops around it, itself included;
    ``innermost`` says that there is none inside."""

    function: str
    instructions: tuple[Instruction, ...]
    depth: int
    innermost: bool


_ENDS = frozenset("ret retq jmp jmpq b br hlt ud2".split())
_NOTE = re.compile(r"\s+# \d+: .*$")
_NUMBERED = re.compile(r"^\s*([0-9a-f]+):\s+(\S.*)$")
_LABEL = re.compile(r"^\s*(\.?[\w.$@]+)(?: \(parallel part\))?:$")
_MASK = re.compile(r"\{%?k([1-7])\}")


def architecture_of(lines: Iterable[Line]) -> str:
    """Which syntax a listing has: x86 registers carry a percent sign."""
    return X86 if any("%" in line.text for line in lines) else AARCH64


def parse(lines: Sequence[Line]) -> list[tuple[str, list[Instruction]]]:
    """A listing as ``(function, instructions)`` in order. Local labels (``.L4``) become addresses that may be jumped
    to; text that is no instruction is left out. O(lines)."""
    architecture = architecture_of(lines)
    read = _x86 if architecture == X86 else _aarch64
    functions: list[tuple[str, list[Instruction]]] = []
    waiting: str | None = None
    for number, line in enumerate(lines, 1):
        text = _NOTE.sub("", line.text).rstrip()
        label = _LABEL.match(text)
        if label and not _NUMBERED.match(text):
            name = label[1]
            if name.startswith((".L", "LBB")):
                waiting = name
            else:
                functions.append((text.rstrip(":"), []))
            continue
        numbered = _NUMBERED.match(text)
        address, body = (numbered[1], numbered[2]) if numbered else (waiting or f"line {number}", text.strip())
        if not body or body.startswith((".", "#", "//")):
            continue
        waiting = None
        if not functions:
            functions.append(("", []))
        functions[-1][1].append(read(address, body, line.origins, number))
    return [(name, found) for name, found in functions if found]


def split_operands(text: str) -> tuple[str, ...]:
    """Operands at the commas that stand in no bracket."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return tuple(part for part in (*parts, current.strip()) if part)


# -- x86-64 ------------------------------------------------------------------------------------------------------------

_X86_REGISTER = re.compile(r"%(\w+)")
_X86_ADDRESS = re.compile(r"^\*?(?:%\ws:)?(-?(?:0x)?[0-9a-f]*|[\w.$@+-]*)\((%\w+)?(?:,(%\w+))?(?:,(\d))?\)$")
_BYTES = {f"{letter}{end}": f"r{letter}x" for letter in "abcd" for end in "lhx"}
_X86_NAMES = {
    **_BYTES, **{f"e{n}": f"r{n}" for n in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")},
    **{f"{n}l": f"r{n}" for n in ("si", "di", "bp", "sp")}, **{n: f"r{n}" for n in ("si", "di", "bp", "sp")},
}  # fmt: skip
#: Nothing is written to a register; the last operand is a source as well.
_NO_RESULT = re.compile(
    r"^(cmp[bwlq]?|test[bwlq]?|v?u?comis[sdh]|k(or)?test[bwdq]|vptest|vtestp[sd]|prefetch|nop|push)(?![a-z])"
)
#: The destination is a source, too.
_ACCUMULATING = re.compile(
    r"^(vf(n?m(add|sub)|maddsub|msubadd)|vpternlog|vpermt2|vpermi2|vgather|vpgather|vpdp|vdpbf16|vpmadd52|"
    r"(add|sub|and|or|xor|imul|adc|sbb|inc|dec|neg|not|shl|shr|sar|sal|rol|ror)[bwlq]?$|cmov)"
)
_ZEROING = re.compile(r"^(v?p?xor|v?xorp|sub|v?psub|vpandn)")
_SSE = re.compile(r"^[a-z0-9]+(p[sd]|s[sd])$|^p[a-z0-9]+$")  # two operands, the last read and written


def x86_register(name: str) -> str:
    """``rax`` for ``al``, ``r8`` for ``r8d``, ``v7`` for ``xmm7``, ``ymm7`` and ``zmm7``."""
    name = name.lstrip("%")
    vector = re.match(r"[xyz]mm(\d+)$", name)
    if vector:
        return f"v{vector[1]}"
    numbered = re.match(r"(r\d+)[bwd]?$", name)
    return numbered[1] if numbered else _X86_NAMES.get(name, name)


def _x86(address: str, body: str, origins: Origins, line: int) -> Instruction:
    mnemonic, _, rest = re.sub(r"\s+##?\s.*$", "", body).partition(" ")
    while mnemonic in ("rep", "repz", "lock", "notrack", "bnd", "cs", "data16"):
        mnemonic, _, rest = rest.strip().partition(" ")
    operands = split_operands(rest.strip())
    if mnemonic.startswith(("j", "loop")):
        indirect = not operands or operands[0].startswith("*")
        target = None if indirect else operands[0].removeprefix("0x")
        return Instruction(address, mnemonic, operands, X86, target=target, origins=origins, line=line)
    if mnemonic.startswith("call"):
        found = _memory(operands[0]) if operands else None
        return Instruction(address, mnemonic, operands, X86, memory=found, origins=origins, line=line)
    plain = [re.sub(r"\{[^}]*\}", "", operand) for operand in operands]
    places = [k for k, operand in enumerate(plain) if _X86_ADDRESS.match(operand)]
    memory = _memory(plain[places[0]]) if places else None
    mask = next((f"k{m[1]}" for operand in operands if (m := _MASK.search(operand))), None)
    selects = "blendm" in mnemonic or mnemonic.startswith(("vpcmp", "vcmp", "vptest"))
    merges = mask is not None and not selects and not any("{z}" in operand for operand in operands)
    registers = [x86_register(o) if o.startswith("%") else None for o in plain]
    last = len(plain) - 1
    stores = bool(places) and places[0] == last and last > 0 and not _NO_RESULT.match(mnemonic)
    reads = [r for k, r in enumerate(registers) if r and (k != last or stores)]
    writes: list[str] = []
    if _NO_RESULT.match(mnemonic):
        reads = [r for r in registers if r]
    elif registers and registers[last]:
        writes = [registers[last]]
        legacy = bool(_SSE.match(mnemonic)) and len(plain) == 2 and not mnemonic.startswith(("v", "mov", "cvt", "sqrt"))
        one = len(plain) == 1 and not mnemonic.startswith(("set", "pop"))
        if _ACCUMULATING.match(mnemonic) and len(plain) < 3 or _ACCUMULATING.match(mnemonic) and mnemonic[0] == "v":
            reads.append(registers[last])
        elif legacy or one or merges:
            reads.append(registers[last])
        sources = [r for r in registers[:-1] if r]
        if _ZEROING.match(mnemonic) and len(set(sources)) == 1 and memory is None and mask is None:
            if len(sources) == 2 or sources[0] == registers[last]:
                reads = []  # a register minus or xor itself is zero, and the processor does not wait for it
    if mask:
        reads.append(mask)
    width = max((_X86_WIDTH.get(o[1:4], 0) for o in plain if o.startswith("%")), default=0)
    return Instruction(
        address, mnemonic, operands, X86, tuple(dict.fromkeys(reads)), tuple(writes), memory, stores, width,
        mask is not None, None, origins, line,
    )  # fmt: skip


_X86_WIDTH = {"xmm": 128, "ymm": 256, "zmm": 512}


def _memory(operand: str) -> MemoryOperand | None:
    found = _X86_ADDRESS.match(operand)
    if not found:
        return None
    displacement, base, index, scale = found.groups()
    try:
        offset = int(displacement, 16 if "x" in displacement else 10) if displacement else 0
    except ValueError:
        offset = 0  # a symbol: where it is, the linker knows
    name = base.lstrip("%") if base else None
    return MemoryOperand(
        x86_register(base) if name and name != "rip" else name, x86_register(index) if index else None,
        int(scale or 1), offset,
    )  # fmt: skip


# -- AArch64 -----------------------------------------------------------------------------------------------------------

_ARM_VECTOR = re.compile(r"^\{?\s*[vqdshbz](\d+)(?:\.(\d*)([bhsdq]))?(?:\[\d+\])?\s*\}?$")
_ARM_GENERAL = re.compile(r"^[xw](\d+|zr)$")
_ARM_ACCUMULATING = ("fmla", "fmls", "mla", "mls", "movk", "ins", "bit", "bif", "bsl", "sdot", "udot", "bfmlal")


def arm_register(name: str) -> str | None:
    """``x3`` for ``w3``, ``v3`` for ``q3``, ``s3`` and ``v3.4s``; None for what is no register."""
    name = name.strip(" {}")
    vector, general = _ARM_VECTOR.match(name), _ARM_GENERAL.match(name)
    if vector:
        return f"v{vector[1]}"
    if general:
        return f"x{general[1]}"
    return "sp" if name == "sp" else None


def _arm_width(name: str) -> int:
    name = name.strip(" {}")
    found = _ARM_VECTOR.match(name)
    if not found:
        return 0
    if name[0] == "v" and found[3]:
        lanes = int(found[2]) if found[2] else 1
        return lanes * {"b": 8, "h": 16, "s": 32, "d": 64, "q": 128}[found[3]]
    return {"q": 128, "v": 128, "z": 128}.get(name[0], 0)


def _aarch64(address: str, body: str, origins: Origins, line: int) -> Instruction:
    mnemonic, _, rest = re.sub(r"\s*(//|;).*$", "", body).partition(" ")
    operands = split_operands(rest.strip())
    shape = re.fullmatch(r"(\w+)\.(\d*[bhsdq])", mnemonic)
    if shape:  # macOS writes ``fadd.4s v0, v0, v1`` for ``fadd v0.4s, v0.4s, v1.4s``
        mnemonic = shape[1]
        operands = tuple(re.sub(r"\bv(\d+)\b(?!\.)", rf"v\1.{shape[2]}", operand) for operand in operands)
    if mnemonic in ("b", "cbz", "cbnz", "tbz", "tbnz") or mnemonic.startswith("b."):
        target = operands[-1].removeprefix("0x") if operands else None
        tested = tuple(r for o in operands[:-1] if (r := arm_register(o)))
        return Instruction(address, mnemonic, operands, AARCH64, tested, target=target, origins=origins, line=line)
    if mnemonic in ("bl", "blr", "br", "ret"):
        return Instruction(address, mnemonic, operands, AARCH64, origins=origins, line=line)
    bracket = next((k for k, operand in enumerate(operands) if operand.startswith("[")), None)
    memory = _arm_memory(operands, bracket) if bracket is not None else None
    named = [part for operand in operands[:bracket] for part in _arm_list(operand)]
    registers = [r for part in named if (r := arm_register(part)) and r not in ("xzr", "wzr")]
    stores = mnemonic.startswith("st") and memory is not None
    several = mnemonic in ("ldp", "ldnp") or mnemonic.startswith("ld1")
    compares = mnemonic in ("cmp", "cmn", "tst", "fcmp", "fcmpe", "ccmp") or mnemonic.startswith("prfm")
    writes = [] if stores or compares else registers if several else registers[:1]
    reads = registers if stores or compares else [] if several else registers[1:]
    if mnemonic.startswith(_ARM_ACCUMULATING):
        reads = registers
    if memory is not None and memory.advance and memory.base:
        writes, reads = [*writes, memory.base], [*reads, memory.base]
    width = max((_arm_width(part) for part in named), default=0)
    return Instruction(
        address, mnemonic, operands, AARCH64, tuple(dict.fromkeys(reads)), tuple(writes), memory, stores, width,
        False, None, origins, line,
    )  # fmt: skip


def _arm_list(operand: str) -> list[str]:
    return operand.strip("{} ").split(",") if operand.startswith("{") else [operand]


def _arm_memory(operands: Sequence[str], place: int) -> MemoryOperand:
    inside = split_operands(operands[place].strip("[]!"))
    base = arm_register(inside[0]) if inside else None
    index, displacement, scale = None, 0, 1
    for part in inside[1:]:
        if arm_register(part):
            index = arm_register(part)
        elif part.startswith("lsl"):
            scale = 1 << int(part.split("#")[-1].split()[-1])
        elif re.match(r"^#?-?\d", part):
            displacement = int(part.lstrip("#"), 0)
    after = operands[place + 1] if place + 1 < len(operands) else ""
    advance = int(after.lstrip("#"), 0) if re.match(r"^#?-?\d", after) else 0
    if operands[place].endswith("!"):
        advance = displacement
    return MemoryOperand(base, index, scale, displacement, advance)


# -- loops -------------------------------------------------------------------------------------------------------------


def natural_loops(name: str, instructions: Sequence[Instruction]) -> list[NaturalLoop]:
    """The loops of one function, in the order of their first instruction; those with one head are one loop.

    Blocks are counted in hundreds, so that dominators are found by iterating sets. O(blocks^2) at worst.
    """
    blocks, following = _blocks(instructions)
    before: list[set[int]] = [set() for _ in blocks]
    for block, targets in enumerate(following):
        for target in targets:
            before[target].add(block)
    reached, waiting = {0}, [0]
    while waiting:
        for target in following[waiting.pop()]:
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    dominators: list[set[int]] = [set(reached) for _ in blocks]
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for block in sorted(reached - {0}):
            new = set.intersection(*(dominators[p] for p in before[block] if p in reached)) | {block}
            changed |= new != dominators[block]
            dominators[block] = new
    bodies: dict[int, set[int]] = {}
    for block in sorted(reached):
        for head in following[block] & dominators[block]:
            body = bodies.setdefault(head, {head})
            waiting = [block]
            while waiting:
                member = waiting.pop()
                if member not in body:
                    body.add(member)
                    waiting.extend(before[member] & reached)
    loops = []
    for head, body in sorted(bodies.items()):
        around = [h for h, other in bodies.items() if h != head and head in other]
        inside = [h for h in bodies if h != head and h in body]
        members = tuple(i for block in sorted(body) for i in instructions[slice(*blocks[block])])
        loops.append(NaturalLoop(name, members, len(around) + 1, not inside))
    return loops


def _blocks(instructions: Sequence[Instruction]) -> tuple[list[tuple[int, int]], list[set[int]]]:
    """Basic blocks as ``(first, end)``, and the blocks that may follow each."""
    position = {instruction.address: k for k, instruction in enumerate(instructions)}
    leaders = {0}
    for k, instruction in enumerate(instructions):
        if instruction.target in position:
            leaders.add(position[instruction.target])
        if instruction.is_branch and k + 1 < len(instructions):
            leaders.add(k + 1)
    starts = sorted(leaders)
    blocks = list(zip(starts, [*starts[1:], len(instructions)], strict=True))
    number = {start: k for k, start in enumerate(starts)}
    following: list[set[int]] = []
    for k, (_, end) in enumerate(blocks):
        last = instructions[end - 1]
        targets = {number[position[last.target]]} if last.target in position else set()
        if last.mnemonic not in _ENDS and k + 1 < len(blocks):
            targets.add(k + 1)
        following.append(targets)
    return blocks, following
