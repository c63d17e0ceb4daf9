"""What the inner loop of a kernel consists of, by kind of instruction and width of vector (Section 8.1).

The name of an instruction says what it does; :data:`TABLE` sorts names into *kinds*, which a reader counts, and into
*groups*, which the tables of :mod:`.port_model` give costs for. An addition that reads one operand from memory is an
addition here and a load besides, since that is what the processor makes of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from .machine_code import AARCH64, Instruction, MemoryOperand

#: Kinds in the order they are shown.
KINDS = (
    "vector load", "vector store", "non-temporal store", "gather, scatter", "add, multiply", "multiply-add",
    "divide, root", "compare, select", "convert, round", "shuffle", "integer, logic", "mask", "vector move", "prefetch",
    "scalar, address", "branch", "call",
)  # fmt: skip
VECTOR_KINDS = frozenset(KINDS[: KINDS.index("prefetch")])
ARITHMETIC = frozenset({"add, multiply", "multiply-add", "divide, root", "compare, select", "integer, logic"})

#: (pattern of the name, kind, group); the first that matches counts. Prefix "v" is left out before.
TABLE: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), kind, group)
    for pattern, kind, group in (
        (r"call|bl$|blr$", "call", "call"),
        (r"j|loop|ret|b$|b\.|cbn?z|tbn?z|br$", "branch", "branch"),
        (r"prefetch|prfm", "prefetch", "prefetch"),
        (r"nop|endbr|zeroupper|zeroall|hlt|ud2", "scalar, address", "nothing"),
        (r"movnt(?!dqa)|stnp", "non-temporal store", "non-temporal store"),
        (r"p?gather|p?scatter", "gather, scatter", "load"),
        (r"fn?m(add|sub)|fmaddsub|fmsubadd|fml[as]|fn?madd|fn?msub|bfml|dp(bf16|bus|wss)", "multiply-add", "fma"),
        (r"divp?[sp]s|fdiv", "divide, root", "divide single"),
        (r"div[sp]d", "divide, root", "divide double"),
        (r"sqrt[sp]s|fsqrt", "divide, root", "root single"),
        (r"sqrt[sp]d", "divide, root", "root double"),
        (r"r(cp|sqrt)(14|28)?[sp][sdh]|frecp|frsqrt", "divide, root", "approximate"),
        (r"(h?add|h?sub|addsub)[sp][sdh]|scalef|getexp|getmant|fadd|fsub|faddp|fabd", "add, multiply", "fp add"),
        (r"mul[sp][sdh]|fmul|fnmul|fmulx", "add, multiply", "fp multiply"),
        (r"(max|min)[sp][sdh]|f(max|min)(nm)?p?v?$", "compare, select", "fp extreme"),
        (r"u?comis|ptest|testp|fcmp|fcm|cmn?[egl]|fac", "compare, select", "fp compare"),
        (r"cmp\w*[sp][sdh]$", "compare, select", "fp compare"),
        (r"pcmp|ptestn?m|cm(eq|ge|gt|hi|hs|tst)", "compare, select", "integer extreme"),
        (r"p(max|min)|[su](max|min)", "compare, select", "integer extreme"),
        (r"blendm|pblendm|blendp[sd]|pblend[dw]|bsl|bit$|bif|fcsel", "compare, select", "blend"),
        (r"p?blendv", "compare, select", "variable blend"),
        (r"round|rndscale|reduce|frint", "convert, round", "round"),
        (r"cvt(ps2pd|pd2ps|ph2ps|ps2ph|dq2pd|t?pd2dq|ss2sd|sd2ss|si2s|t?s[sd]2)|fcvtl|fcvtn", "convert, round",
         "convert wide"),
        (r"cvt|[su]cvtf|fcvt", "convert, round", "convert"),
        (r"pmov[sz]x|[su]xtl|[su]shll", "convert, round", "shuffle across"),
        (r"pmovu?s?(dw|db|wb|qd|qw|qb)|pack|[su]?q?xtn", "convert, round", "narrow"),
        (r"pmov(m2|\w2m)|movmsk|pmovmsk", "mask", "mask to general"),
        (r"k(mov)", "mask", "general to mask"),
        (r"k(and|or|xor|xnor|not|add|shift|unpck|test|ortest)", "mask", "mask"),
        (r"(un)?pckh?l?p[sd]|unpck|shufp|punpck|pshuf[dhlb]|palignr|ps[lr]ldq|movhlps|movlhps|mov(s[lh]|d)dup|"
         r"permilp|insertps|ext$|zip|uzp|trn|rev", "shuffle", "shuffle"),
        (r"perm|shuf[fi]|align[dq]|extract|insert|broadcast|pextr|pinsr|compress|expand|pcompress|pexpand|tbl|tbx|dup|"
         r"ins$|umov|smov", "shuffle", "shuffle across"),
        (r"pmul|pmadd|psadbw", "integer, logic", "integer multiply"),
        (r"ps[lr][la][dwqv]|pro[lr]|pshld|pshrd", "integer, logic", "shift"),
        (r"and(n)?p[sd]|orp[sd]|xorp[sd]|pand|por|pxor|pternlog", "integer, logic", "logic"),
        (r"p(add|sub|abs|avg|sign|lzcnt|popcnt|conflict)", "integer, logic", "integer"),
    )
)  # fmt: skip
_GENERAL: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), group)
    for pattern, group in (
        (r"lea|adrp?$", "address"), (r"imul|mul|madd|msub", "multiply"), (r"i?div|[su]div", "integer divide"),
        (r"s[ha][lr]|ro[lr]|rc[lr]|ls[lr]|asr|ror", "general shift"),
    )
)  # fmt: skip
_MOVES = re.compile(r"mov(ap|up|dq|ss|sd|sh|d$|q$|w$|lp|hp|$|i$)|lddqu|ld[rp1-4u]|ldn?p|st[rp1-4u]|maskmov|pmaskmov")
_SCALAR = re.compile(r"(?<!t)s[sdh]$|s[sd]2|2s[sd]")


@lru_cache(maxsize=4096)
def _sorted(name: str) -> tuple[str, str] | None:
    """Kind and group of an instruction with vector registers, by its name without the prefix "v"."""
    for pattern, kind, group in TABLE:
        if pattern.match(name):
            return kind, group
    return None


def kind_and_group(instruction: Instruction) -> tuple[str, str]:
    """What an instruction is counted as, and what it costs."""
    name, arm = instruction.mnemonic, instruction.architecture == AARCH64
    plain = name if arm else name.removeprefix("v")
    vector = instruction.width > 0
    if instruction.is_call or instruction.is_branch or name.startswith(("prefetch", "prfm", "nop")):
        return _sorted(plain) or ("branch", "branch")
    if name[0] == "k" and not arm:
        return _mask(instruction)
    if not vector:
        if name.startswith("vzero"):
            return "scalar, address", "nothing"
        if plain.startswith("movnt"):
            return "non-temporal store", "non-temporal store"
        if name.startswith(("set", "cmov")):
            return "scalar, address", "general"
        return "scalar, address", _general_group(instruction)
    if plain.startswith("movnt") or _MOVES.match(plain) and not plain.startswith(("movmsk", "movhlps", "movlhps")):
        if instruction.stores:
            return ("non-temporal store" if plain.startswith(("movnt", "stnp")) else "vector store"), "nothing"
        if instruction.memory is not None:
            return "vector load", "nothing"
        if instruction.masked:
            return "compare, select", "blend"  # some lanes of it: work for a port, which whole moves are not
        general = [o for o in instruction.operands if o.startswith("%") and not re.match(r"%[xyz]mm", o)]
        if general and plain in ("movd", "movq", "movw"):
            into = instruction.operands[-1] == general[-1]
            return "vector move", "vector to general" if into else "general to vector"
        return "vector move", "vector move"
    if "broadcast" in plain and instruction.memory is not None:
        return "vector load", "nothing"
    if plain.startswith(("extract", "pextr")) and instruction.stores:
        return "vector store", "nothing"
    kind, group = _sorted(plain) or ("integer, logic", "integer")
    if kind == "compare, select" and instruction.operands[-1].startswith("%k"):
        group = "compare to mask"
    return kind, group


def _general_group(instruction: Instruction) -> str:
    name = instruction.mnemonic
    if re.match(r"mov(?!nt)|ldr|str|ldp|stp|ldu|stu", name):
        if instruction.memory is not None:
            return "nothing"  # a load or a store, and nothing else
        constant = any(operand[0] in "$#" for operand in instruction.operands)
        return "general" if constant or name.startswith(("movz", "movs")) else "general move"
    return next((group for pattern, group in _GENERAL if pattern.match(name)), "general")


def _mask(instruction: Instruction) -> tuple[str, str]:
    if not instruction.mnemonic.startswith("kmov"):
        return "mask", "mask"
    if instruction.memory is not None:
        return "mask", "nothing"
    if all(o.startswith("%k") for o in instruction.operands):
        return "mask", "mask"
    return "mask", "general to mask" if instruction.operands[-1].startswith("%k") else "mask to general"


def width_of(instruction: Instruction) -> int:
    """The width an instruction is counted under: 128, 256 or 512 bits, or 0 for one element at a time."""
    if instruction.width == 0:
        return 0
    arm = instruction.architecture == AARCH64
    if arm:
        return instruction.width if instruction.width >= 128 else 0
    single = _SCALAR.search(instruction.mnemonic) or re.match(r"v?mov[dq]$|v?u?comis", instruction.mnemonic)
    return 0 if single and instruction.width == 128 else instruction.width


def instruction_mix(instructions: Iterable[Instruction]) -> dict[tuple[str, int], int]:
    """How many instructions of each kind and width there are, kinds in the order of :data:`KINDS`."""
    counted = Counter((kind_and_group(i)[0], width_of(i)) for i in instructions)
    return dict(sorted(counted.items(), key=lambda entry: (KINDS.index(entry[0][0]), -entry[0][1])))


# -- memory ------------------------------------------------------------------------------------------------------------

_SIZES = {"b": 1, "w": 2, "d": 4, "l": 4, "q": 8}


def element_bytes(instruction: Instruction, default: int = 4) -> int:
    """Bytes of an element in the vector registers, as the name says; ``default`` where it does not."""
    name = instruction.mnemonic
    if instruction.architecture == AARCH64:
        found = re.search(r"\.\d*([bhsd])", " ".join(instruction.operands))
        return {"b": 1, "h": 2, "s": 4, "d": 8}[found[1]] if found else default
    widened = re.search(r"pmov[sz]x[bwd]([wdq])", name)
    narrowed = re.search(r"pmovu?s?([dqw])[bwd]$", name)
    if widened or narrowed:
        return _SIZES[(widened or narrowed)[1]]
    if re.search(r"[sp]s\d?$|ss$|ph2ps|ps2ph", name):
        return 4
    if re.search(r"[sp]d$|ps2pd|dq2pd", name):
        return 8
    spelled = re.search(r"dq[au](8|16|32|64)", name)
    if spelled and instruction.masked:  # without a mask, compilers spell any element so
        return int(spelled[1]) // 8
    packed = re.match(r"v?p\w*?([bwdq])$", name)
    return _SIZES[packed[1]] if packed else default


def memory_bytes(instruction: Instruction, default: int = 4) -> int:
    """Bytes an instruction moves between memory and registers; of a masked one, as if no lane were left out."""
    if instruction.memory is None or not (instruction.loads or instruction.stores) or instruction.is_call:
        return 0
    name, width = instruction.mnemonic, instruction.width // 8
    if instruction.architecture == AARCH64:
        return _arm_bytes(instruction)
    repeated = next((m for o in instruction.operands if (m := re.search(r"\{1to(\d+)\}", o))), None)
    if repeated:
        return width // int(repeated[1])
    part = re.search(r"(broadcast|extract|insert)[fi]?(\d\d)x(\d)$", name)
    if part:
        return int(part[2]) * int(part[3]) // 8
    if re.search(r"(broadcast|extract|insert)[fi]128", name):
        return 16
    if "broadcast" in name or re.match(r"v?p?(extr|insr|insert)", name):
        return element_bytes(instruction, default)
    widened = re.search(r"pmov[sz]x([bwd])([wdq])", name)
    narrowed = re.search(r"pmovu?s?([dqw])([bwd])$", name)
    if widened or (narrowed and instruction.stores):
        small, large = sorted((_SIZES[(widened or narrowed)[1]], _SIZES[(widened or narrowed)[2]]))
        return width * small // large
    if re.search(r"ps2pd|ph2ps|ps2ph|dq2pd", name):
        return width // 2
    if re.match(r"v?movl?h?ps$|v?mov[lh]p[sd]", name) and not re.match(r"v?mov[au]p", name):
        return 8
    if width_of(instruction) == 0 and instruction.width:
        return {"d": 8, "q": 8, "h": 2}.get(name[-1], 4) if not re.match(r"v?movd$", name) else 4
    if instruction.width:
        return width
    return _general_bytes(instruction)


def _general_bytes(instruction: Instruction) -> int:
    name = instruction.mnemonic
    extended = re.match(r"mov[sz]([bwl])[wlq]$", name)
    if extended:
        return _SIZES[extended[1]]
    for operand in instruction.operands:
        if re.match(r"%r(\d+|[abcd]x|[sd]i|[sb]p)$", operand):
            return 8
        if re.match(r"%(e\w\w|r\d+d)$", operand):
            return 4
        if re.match(r"%(\wx|r\d+w|[sd]i|[sb]p)$", operand):
            return 2
        if re.match(r"%(\w[lh]|r\d+b|[sd]il)$", operand):
            return 1
    return _SIZES.get(name[-1], 8)


def _arm_bytes(instruction: Instruction) -> int:
    registers = [o for o in instruction.operands if not o.startswith(("[", "#"))]
    listed = [part for o in registers for part in (o.strip("{} ").split(",") if o.startswith("{") else [o])]
    total = 0
    for name in listed:
        name = name.strip(" {}")
        lanes = re.match(r"v\d+\.(\d+)([bhsd])", name)
        if lanes:
            total += int(lanes[1]) * {"b": 1, "h": 2, "s": 4, "d": 8}[lanes[2]]
        else:
            total += {"q": 16, "d": 8, "s": 4, "h": 2, "b": 1, "x": 8, "w": 4}.get(name[:1], 0)
    return total


def distinct_accesses(instructions: Sequence[Instruction], stores: bool) -> dict[MemoryOperand, Instruction]:
    """Vector accesses to data, each address once: not what is spilled to the stack, not constants beside the code."""
    found: dict[MemoryOperand, Instruction] = {}
    for instruction in instructions:
        memory = instruction.memory
        if memory is None or instruction.width == 0 or memory.base in ("rsp", "rbp", "rip", "sp", "x29", None):
            continue
        if instruction.stores if stores else instruction.loads:
            found.setdefault(memory, instruction)
    return found


def elements_per_iteration(instructions: Sequence[Instruction], default: int = 4) -> int | None:
    """Elements one iteration goes through: those stored, or, of the operand with most, those loaded."""
    per_base: Counter[tuple[str | None, str | None, bool]] = Counter()
    for stores in (True, False):
        for memory, instruction in distinct_accesses(instructions, stores).items():
            lanes = 1 if width_of(instruction) == 0 else instruction.width // 8 // element_bytes(instruction, default)
            if instruction.architecture == AARCH64:
                lanes = memory_bytes(instruction, default) // element_bytes(instruction, default)
            key = ("stored", None, True) if stores else (memory.base, memory.index, False)
            per_base[key] += max(lanes, 1)
    return max(per_base.values()) if per_base else None
