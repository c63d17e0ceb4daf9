"""The addresses that a compiled kernel touches, worked out from its TTGIR (Section 9.1).

A model of memory traffic can be wrong about the kernel it describes. This one reads the compiler's own program: the
integer operations that lead from the program's number and the lane's number to an address are executed here, on whole
blocks, for the program instances that are asked for. What depends on data (an index that was loaded) is not known, and
says so. Of a loop, the first, second and last iteration are looked at; those between them are run where the loop
carries values along, and the last one is left out where that would take too long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..kernel import Kernel
from .locations import MlirLocations, line_of, without_locations

_OPERATION = re.compile(r"^(?:(?P<results>%[\w.$]+(?::\d+)?) = )?\"?(?P<name>[a-z_]+\.[a-z_0-9]+)\"?(?P<rest>.*)$")
_NAME = re.compile(r"%[\w.$]+(?:#\d+)?")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.+)>$")
_ARGUMENT = re.compile(r"(%[\w.$]+): (!tt\.ptr<\w+>|i32|i64)")
_LOOP = re.compile(r"(%[\w.$]+) = (%[\w.$#]+) to (%[\w.$#]+) step (%[\w.$#]+)(?: iter_args\((.*?)\))?(?: ->|\s*:| \{)")
_COPY = "ttg.async_copy_global_to_local"
_TILES = ("ttng.async_tma_copy_global_to_local", "ttng.async_tma_copy_local_to_global")
MOST_ITERATIONS = 64  # run one after the other
_ATOMIC = ("tt.atomic_rmw", "tt.atomic_cas")

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor, "arith.maxsi": np.maximum, "arith.minsi": np.minimum,
    "arith.maxui": np.maximum, "arith.minui": np.minimum, "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift, "arith.shrui": np.right_shift,
    "arith.divsi": lambda a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)), "arith.divui": lambda a, b: a // b,
    "arith.remsi": np.fmod, "arith.remui": lambda a, b: a % b,  # signed ones round towards zero
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater,
    "sge": np.greater_equal, "ult": np.less, "ule": np.less_equal, "ugt": np.greater, "uge": np.greater_equal,
}  # fmt: skip
_UNCHANGED = (
    "arith.trunci", "arith.index_cast", "arith.index_castui", "ttg.convert_layout", "tt.bitcast",
)  # fmt: skip
_WIDER = {"arith.extui": 1, "arith.extsi": -1}  # what a truth value becomes


@dataclass(frozen=True)
class Pointer:
    """Elements of the tensor behind an argument, as offsets from its beginning."""

    argument: str
    offsets: Any


@dataclass(frozen=True)
class Access:
    """One execution of a load, a store or an atomic operation; ``role`` is "read", "write", "atomic", or "tile" for one
    that the tensor memory accelerator moves, whose addresses no thread computes.

    ``argument`` names the pointer, ``offsets`` are element offsets [block shape], None where they depend on data;
    ``mask`` tells which positions are touched (None: all, or, if not ``mask_known``, nobody knows which); ``shape`` and
    ``layout`` are those of the block (an empty shape: one element that every thread asks for); ``line`` is the
    kernel's, ``number`` the operation's in the text.
    """

    role: str
    argument: str | None
    offsets: np.ndarray | None
    mask: np.ndarray | None
    shape: tuple[int, ...]
    layout: str
    line: int | None
    number: int
    mask_known: bool = True


@dataclass
class _Run:
    """One program instance."""

    kernel: Kernel
    table: MlirLocations
    program: tuple[int, int, int]
    lines: list[str]
    known: dict[str, Any] = field(default_factory=dict)
    found: list[Access] = field(default_factory=list)
    recording: bool = True

    def value(self, name: str) -> Any:
        return self.known.get(name)


def accesses(kernel: Kernel, ttgir: str, program: tuple[int, int, int] = (0, 0, 0)) -> tuple[Access, ...]:
    """Every access of global memory that the program instance ``program`` makes, in the order of the text.

    Work proportional to the operations of the text times the elements of a block.
    """
    lines = [raw for raw in ttgir.splitlines() if not raw.startswith("#")]
    run = _Run(kernel, MlirLocations(ttgir), program, lines)
    start = next(k for k, raw in enumerate(lines) if "tt.func public" in raw)
    head, _ = without_locations(lines[start])
    sizes = kernel.launch["sizes"]
    for name, kind in _ARGUMENT.findall(head):
        run.known[name] = Pointer(name[1:], np.int64(0)) if kind.startswith("!") else sizes.get(name[1:])
    with np.errstate(all="ignore"):
        _execute(run, start + 1, _close(lines, start))
    return tuple(run.found)


def _close(lines: list[str], start: int) -> int:
    """The line on which the body that opens at the end of line ``start`` closes."""
    depth = 0
    for number in range(start, len(lines)):
        shown, _ = without_locations(lines[number])
        shown = shown.strip()
        if shown.startswith("}") and number > start:
            depth -= 1
            if depth == 0:
                return number
        depth += shown.endswith("{")
    return len(lines)


def _execute(run: _Run, start: int, end: int) -> list[Any] | None:
    """Run the lines from ``start`` to before ``end``; the values of a ``yield`` at the end, if there is one."""
    number = start
    while number < end:
        shown, location = without_locations(run.lines[number])
        shown = shown.strip()
        found = _OPERATION.match(shown)
        if shown.endswith("{"):
            last = _close(run.lines, number)
            if found and found["name"] == "scf.for":
                _loop(run, found, number + 1, last)
            elif found and found["name"] == "scf.if":
                last = _branches(run, found, number, last)
            else:
                _execute(run, number + 1, last)
            number = last if run.lines[last : last + 1] and _opens(run.lines[last]) else last + 1
            continue
        number += 1
        if found is None:
            continue
        if found["name"] in ("scf.yield", "tt.reduce.return"):
            return [run.value(name) for name in _operands(found["rest"])]
        value = _operation(run, found["name"], found["rest"], location, number - 1)
        if found["results"]:
            run.known[found["results"].split(":")[0]] = value
    return None


def _opens(line: str) -> bool:
    return without_locations(line)[0].rstrip().endswith("{")


def _branches(run: _Run, found: re.Match, start: int, middle: int) -> int:
    """The branch that is taken, or both where the condition is data, of which the first closes on line ``middle``; the
    line on which the last one closes."""
    condition = run.value(_operands(found["rest"])[0])
    if condition is None or condition:
        _execute(run, start + 1, middle)
    if not _opens(run.lines[middle]):
        return middle
    end = _close(run.lines, middle)
    if condition is None or not condition:
        _execute(run, middle + 1, end)
    return end


def _loop(run: _Run, found: re.Match, start: int, end: int) -> None:
    """The iterations of a loop that are looked at, and those that have to be run to get there."""
    parts = _LOOP.search(found["rest"])
    if parts is None:
        _execute(run, start, end)
        return
    first, bound, step = (run.value(parts[k]) for k in (2, 3, 4))
    carried = [pair.split(" = ") for pair in (parts[5] or "").split(", ") if " = " in pair]
    values = [run.value(given.strip()) for _, given in carried]
    if first is None or bound is None or not step:
        rounds: list[tuple[Any, bool]] = [(first, True)]
    else:
        count = max(-(-(int(bound) - int(first)) // int(step)), 0)
        steady = all(value is None for value in values)
        wanted = {0, 1, count - 1} if steady or count <= MOST_ITERATIONS else {0, 1}
        needed = wanted if steady else range(max(wanted) + 1)
        rounds = [(int(first) + k * int(step), k in wanted) for k in sorted(needed) if 0 <= k < count]
    recording = run.recording
    for value, looked_at in rounds:
        run.recording = recording and looked_at
        run.known[parts[1]] = value
        run.known |= {name.strip(): given for (name, _), given in zip(carried, values, strict=True)}
        values = _execute(run, start, end) or [None] * len(carried)
        values = (values + [None] * len(carried))[: len(carried)]
    run.recording = recording
    results = found["results"]
    if results:
        name = results.split(":")[0]
        run.known[name] = None  # after the last iteration a carried value is not known


def _operands(rest: str) -> list[str]:
    """The names before the types of an operation."""
    return _NAME.findall(rest.split(" : ")[0])


def _shape_of(rest: str) -> tuple[tuple[int, ...], str]:
    """Shape and layout of the last type that an operation mentions; of no tensor: an empty shape."""
    kind = rest.rsplit("-> ", 1)[-1] if "-> " in rest else rest.rsplit(" : ", 1)[-1]
    return shape_and_layout(kind.strip())


def shape_and_layout(kind: str) -> tuple[tuple[int, ...], str]:
    """``tensor<32x1xi32, #blocked>`` -> ((32, 1), "#blocked"); ((), "") for a scalar."""
    found = _TENSOR.match(kind)
    if not found:
        return (), ""
    shape = tuple(int(n) for n in found[1].split("x") if n)
    _, _, layout = found[2].partition(", ")
    return shape, layout


def _first_type(rest: str) -> str:
    """The first of the types behind the colon, with brackets balanced."""
    kinds, depth = rest.rsplit(" : ", 1)[-1].removeprefix("(").split(" -> ")[0], 0
    for place, character in enumerate(kinds):
        depth += (character in "<([{") - (character in ">)]}" and kinds[place - 1] != "-")
        if character == "," and not depth:
            return kinds[:place]
    return kinds


def _operation(run: _Run, name: str, rest: str, location: str, number: int) -> Any:
    names = _operands(rest)
    if name in ("tt.load", "tt.store", _COPY, *_TILES, *_ATOMIC):
        if run.recording:
            _record(run, name, names, rest, location, number)
        return None
    if name == "arith.constant":
        return _constant(rest)
    if name == "tt.get_program_id":
        return run.program["xyz".index(rest.strip()[0])]
    if name == "tt.get_num_programs":
        return run.kernel.launch["grid"]["xyz".index(rest.strip()[0])]
    if name == "tt.make_range":
        ends = dict(re.findall(r"(start|end) = (\d+)", rest))
        return np.arange(int(ends["start"]), int(ends["end"]), dtype=np.int64)
    given = [run.value(operand) for operand in names]
    if not given or any(value is None for value in given[:3]):
        return None
    return _compute(name, given, rest)


def _compute(name: str, given: list[Any], rest: str) -> Any:
    """An operation on values that are known."""
    if name in _UNCHANGED:
        return given[0]
    if name in _WIDER:
        is_truth = np.asarray(given[0]).dtype == bool
        return np.where(given[0], _WIDER[name], 0) if is_truth else given[0]
    if name == "tt.trans":
        order = [int(n) for n in re.search(r"array<i32: ([\d, ]+)>", rest)[1].split(",")]  # type: ignore[index]
        return _mapped(given[0], lambda value: np.transpose(value, order))
    if name in ("tt.splat", "tt.broadcast"):
        shape, _ = _shape_of(rest)
        return _mapped(given[0], lambda value: np.broadcast_to(value, shape))
    if name == "tt.expand_dims":
        axis = int(re.search(r"axis = (\d+)", rest)[1])  # type: ignore[index]
        return _mapped(given[0], lambda value: np.expand_dims(value, axis))
    if name == "tt.reshape":
        shape, _ = _shape_of(rest)
        return _mapped(given[0], lambda value: np.reshape(value, shape))
    if name == "tt.addptr":
        pointer, offset = given
        return Pointer(pointer.argument, pointer.offsets + offset) if isinstance(pointer, Pointer) else None
    if any(isinstance(value, Pointer) for value in given):
        return None
    if name in _BINARY:
        return _BINARY[name](*given[:2])
    if name == "arith.cmpi":
        return _COMPARE[rest.strip().split(",")[0].split()[0]](*given[:2])
    if name == "arith.select":
        return np.where(*given[:3])
    return None


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    return Pointer(value.argument, change(value.offsets)) if isinstance(value, Pointer) else change(value)


def _constant(rest: str) -> Any:
    """A whole number or truth value, or a block of one; None for anything else."""
    text, _, kind = rest.strip().rpartition(" : ")
    text = text or rest.strip()
    dense = re.fullmatch(r"dense<(.*)>", text)
    word = dense[1] if dense else text
    if word in ("true", "false"):
        value: Any = word == "true"
    elif re.fullmatch(r"-?\d+", word):
        value = int(word)
    else:
        return None
    shape, _ = shape_and_layout(kind)
    return np.broadcast_to(value, shape) if shape else value


def _record(run: _Run, name: str, names: list[str], rest: str, location: str, number: int) -> None:
    if name in _TILES:
        role = "tile"
        mask_name = None
    else:
        role = {"tt.load": "read", _COPY: "read", "tt.store": "write"}.get(name, "atomic")
        place = 1 if name == "tt.load" else 2
        mask_name = names[place] if len(names) > place else None
        if name == _COPY:
            given = re.search(r"mask (%[\w.$#]+)", rest)
            mask_name = given[1] if given else None
    pointer = run.value(names[0])
    shape, layout = shape_and_layout(_first_type(rest).strip())
    known = isinstance(pointer, Pointer)
    mask = run.value(mask_name) if mask_name else None
    run.found.append(
        Access(
            role,
            pointer.argument if known else _argument_behind(run, names[0], number),
            np.broadcast_to(pointer.offsets, shape) if known else None,
            None if mask is None else np.broadcast_to(mask, shape),
            shape,
            layout,
            line_of(run.kernel, run.table.places(location)),
            number,
            mask_name is None or mask is not None,
        )
    )


def _argument_behind(run: _Run, name: str, number: int) -> str | None:
    """The pointer argument that an address with unknown offsets starts from."""
    for _ in range(40):
        if isinstance(run.value(name), Pointer):
            return run.value(name).argument
        definition = next(_definitions(run, name, number), None)
        if definition is None or not _operands(definition):
            return None
        name = _operands(definition)[0]
    return None


def _definitions(run: _Run, name: str, number: int) -> Iterator[str]:
    for raw in reversed(run.lines[:number]):
        shown, _ = without_locations(raw)
        found = _OPERATION.match(shown.strip())
        if found and found["results"] == name:
            yield found["rest"]
