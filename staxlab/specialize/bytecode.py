"""What a function's bytecode says about the names it reads (Section 2.5).

Most names stand in the code itself: ``co_names`` lists the globals and attributes. Some ways of reading do not show
there, and each is looked for here: ``getattr`` with a name that is computed, ``vars(o)`` and its kind, ``case C(k=v)``,
``globals()["k"]``, and an ``import`` inside the function.
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: Functions that read attributes whose names no code mentions.
READS_ALL = frozenset(
    {"vars", "dir", "__dict__", "asdict", "astuple", "attrgetter", "getmembers", "__getstate__", "__getattribute__"}
)
#: Ways to fetch a module whose name is a string.
_FETCHES_MODULE = frozenset({"modules", "import_module", "__import__"})
_LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_SUBSCRIPTS = ("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "BINARY_OP")
_SKIPPED = frozenset({"PRECALL", "PUSH_NULL", "CACHE", "RESUME", "KW_NAMES", "NOP", "EXTENDED_ARG", "NOT_TAKEN"})


def code_objects(code: types.CodeType) -> Iterable[types.CodeType]:
    """A code object and the ones nested in it: lambdas, comprehensions, inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


@dataclass(frozen=True)
class Reads:
    """What the code of a user's function (nested functions included) reads and writes by name, in order of first
    appearance. ``evaluates`` is (what, line) of the first thing that could read anything at all."""

    globals: tuple[str, ...] = ()
    stored_globals: tuple[str, ...] = ()
    attributes: frozenset[str] = frozenset()
    stored_attributes: frozenset[str] = frozenset()
    imports: tuple[tuple[str, int], ...] = ()  # (module name, level)
    prints: tuple[tuple[str, int], ...] = ()  # (file, line)
    all_attributes: bool = False
    match_classes: bool = False
    compares_identities: bool = False
    asked: frozenset[str] = frozenset()  # attributes that a parameter is asked for by getattr or hasattr
    evaluates: tuple[str, int] | None = None


@functools.lru_cache(maxsize=4096)
def reads(code: types.CodeType) -> Reads:
    """The :class:`Reads` of a code object. Linear in its length, and remembered."""
    loaded: dict[str, None] = {}
    stored: dict[str, None] = {}
    attributes: set[str] = set()
    stored_attributes: set[str] = set()
    asked: set[str] = set()
    imports: dict[tuple[str, int], None] = {}
    prints: list[tuple[str, int]] = []
    everything = matches = compares = False
    evaluates: tuple[str, int] | None = None
    for part in code_objects(code):
        complete = [i for i in dis.get_instructions(part) if i.opname not in ("CACHE", "EXTENDED_ARG")]
        instructions = [i for i in complete if i.opname not in _SKIPPED]
        for position, instruction in enumerate(instructions):
            name, argument = instruction.opname, instruction.argval
            if name in _LOADS_GLOBAL:
                loaded[argument] = None
                line = instruction.positions.lineno if instruction.positions else None
                if argument == "print" and line:
                    prints.append((part.co_filename, line))
                elif argument == "getattr" or argument == "hasattr":
                    constant = _second_argument(complete, instruction)
                    if constant is not None:
                        attributes.add(constant)
                        asked.update([constant] if _asks_a_parameter(part, instructions[position + 1]) else [])
                    everything = everything or constant is None
                elif argument == "setattr" or argument == "delattr":
                    constant = _second_argument(complete, instruction)
                    stored_attributes.add(constant if constant is not None else "*")
                elif argument == "globals":
                    keys = _keys_of_globals(instructions, position)
                    if keys is None:
                        evaluates = evaluates or ("globals() with a name that is computed", line or 0)
                    elif instructions[position + 3].opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
                        stored[keys] = None
                    else:
                        loaded[keys] = None
                elif argument in ("eval", "exec"):
                    evaluates = evaluates or (f"{argument}()", line or 0)
                everything = everything or argument in READS_ALL
            elif name in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
                attributes.add(argument)
                everything = everything or argument in READS_ALL
            elif name in ("STORE_ATTR", "DELETE_ATTR"):
                stored_attributes.add(argument)
            elif name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                stored[argument] = None
            elif name == "CONTAINS_OP" or (name == "IS_OP" and instructions[position - 1].opname != "LOAD_CONST"):
                compares = True
            elif name == "MATCH_CLASS":
                matches = True
                before = instructions[position - 1].argval
                if isinstance(before, tuple):
                    attributes.update(key for key in before if isinstance(key, str))
            elif name == "IMPORT_NAME":
                level = instructions[position - 2].argval if position > 1 else 0
                imports[argument, level if isinstance(level, int) else 0] = None
        if not _FETCHES_MODULE.isdisjoint(part.co_names):
            for constant in part.co_consts:
                if isinstance(constant, str) and constant in sys.modules:
                    imports[constant, 0] = None
    compares = compares or "id" in loaded
    return Reads(tuple(loaded), tuple(stored), frozenset(attributes), frozenset(stored_attributes), tuple(imports),
                 tuple(prints), everything, matches, compares, frozenset(asked), evaluates)  # fmt: skip


def _second_argument(instructions: list[dis.Instruction], load: dis.Instruction) -> str | None:
    """The constant second argument of the call whose function ``load`` puts on the stack; None if it is no constant, or
    the function is not called there.

    The height of the stack is followed: the argument ends with the last instruction that leaves two values above the
    function.
    """
    height, last = 0, None
    for instruction in instructions[instructions.index(load) + 1 :]:
        if instruction.opname == "PRECALL":  # Python 3.11 divides a call into two instructions: counted as one below
            continue
        if instruction.opname == "CALL" and height == instruction.arg and height >= 2:
            return last.argval if last is not None and _is_name(last) else None
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            return None
        try:
            call = instruction.opname == "CALL"
            height += -(instruction.arg + 1) if call else dis.stack_effect(instruction.opcode, instruction.arg)
        except ValueError:
            return None
        if height < 0:
            return None
        if height == 2:
            last = instruction
    return None


def _asks_a_parameter(code: types.CodeType, argument: dis.Instruction) -> bool:
    """Whether the first argument of a call is a parameter of the function, other than ``self``."""
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return argument.opname.startswith("LOAD_FAST") and argument.argval in parameters and argument.argval != "self"


def _is_name(instruction: dis.Instruction) -> bool:
    return instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str)


def _keys_of_globals(instructions: list[dis.Instruction], position: int) -> str | None:
    """The constant key that ``globals()`` at ``position`` is asked for: ``globals()[k]``, ``.get(k)``, ``k in``."""
    following = instructions[position + 1 : position + 4]
    if len(following) < 3 or following[0].opname != "CALL" or following[0].arg != 0:
        return None
    first, second = following[1], following[2]
    if first.opname == "LOAD_CONST" and second.opname in _SUBSCRIPTS:
        return first.argval if isinstance(first.argval, str) else None
    if first.opname in ("LOAD_ATTR", "LOAD_METHOD") and first.argval == "get" and second.opname == "LOAD_CONST":
        return second.argval if isinstance(second.argval, str) else None
    before = instructions[position - 1] if position else None
    if first.opname == "CONTAINS_OP" and before is not None and before.opname == "LOAD_CONST":
        return before.argval if isinstance(before.argval, str) else None
    return None


def imported_modules(code: types.CodeType, package: str | None) -> Iterator[tuple[str, types.ModuleType | None]]:
    """The modules a function imports when it runs, by full name, and their parents; None for one not imported yet."""
    for name, level in reads(code).imports:
        if level:
            try:
                name = importlib.util.resolve_name("." * level + name, package)
            except (ImportError, ValueError):
                continue
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            full = ".".join(parts[:end])
            yield full, sys.modules.get(full)
