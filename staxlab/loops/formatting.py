"""The formatting interpretation (Section 6.7): loop programs and loop bodies as text a person can read.

Each line keeps its origins, so the terminal listing, the notebook view and the links between stages are one thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..provenance import NO_ORIGINS, CodeWriter, Line, source_of
from .body import LoopBody, Statement, record
from .intervals import Remarks
from .intervals import remarks as analyse
from .ir import (
    BufferArgument,
    Computed,
    ComputedBuffer,
    ExternBuffer,
    LoopProgram,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Template,
)


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def statement_text(statement: Statement) -> str:
    """``tmp2 = add(tmp0, tmp1)``: one statement of a body, without its masked block."""
    name, args = statement.operation, statement.args
    if name == "load":
        text = f"load {args[0]}[{args[1]}]"
    elif name == "constant":
        text = f"constant {args[0]!r} : {dtype_name(statement.dtype)}"
    elif name == "index_value":
        text = f"index_value {args[0]} : {dtype_name(statement.dtype)}"
    elif name == "to_dtype":
        text = f"to_dtype(tmp{args[0]}, {dtype_name(args[1])})"
    elif name == "masked":
        text = f"tmp{args[1].result} if tmp{args[0]} else {args[2]!r}"
    elif name == "merged":
        text = "what was merged"
    elif name == "indirect":
        checked = ", checked" if args[2] else ", proved" if args[2] is None else ""
        return f"{args[3]} = subscript tmp{args[0]} within {args[1]}{checked}"
    else:
        text = f"{name}({', '.join(f'tmp{a}' for a in args)})"
    return f"tmp{statement.id} = {text}"


class _Listing(CodeWriter):
    """Collects lines, and for each a remark, which may be empty."""

    def __init__(self) -> None:
        super().__init__()
        self.remarks: list[str] = []

    def emit(self, text: str = "", origins: Iterable[int] = NO_ORIGINS, remark: str = "") -> None:
        super().emit(text, origins)
        self.remarks += [remark] * (len(self._lines) - len(self.remarks))


def body_lines(body: LoopBody) -> tuple[Line, ...]:
    """The statements of a body, masked blocks indented under their condition."""
    writer = _Listing()
    _write_body(writer, body, {})
    return writer.lines()


def _write_body(writer: _Listing, body: LoopBody, remarks: Mapping[int, str]) -> None:
    def visit(statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            if statement.operation == "masked":
                writer.emit(f"where tmp{statement.args[0]}:", statement.origins)
                with writer.indent():
                    visit(statement.args[1].statements)
            writer.emit(statement_text(statement), statement.origins, remarks.get(statement.id, ""))

    visit(body.statements)


def program_lines(program: LoopProgram, intervals: bool = False) -> tuple[Line, ...]:
    """The listing of a program: inputs, buffers with their compute functions, outputs. ``intervals`` appends to each
    line what is known of its values, as a comment (:func:`annotated_lines`)."""
    lines, remarks = annotated_lines(program, intervals)
    if not intervals:
        return lines
    width = max((len(line.text) for line, remark in zip(lines, remarks, strict=True) if remark), default=0)
    return tuple(
        Line(f"{line.text:<{width}}  # {remark}", line.origins) if remark else line
        for line, remark in zip(lines, remarks, strict=True)
    )


def annotated_lines(program: LoopProgram, intervals: bool = True) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    """The lines of a program, and for each a remark or "": the interval of the value or subscript (Section 6.8), which
    checks of subscripts went or stayed and why, and how many bits the subscripts of a buffer take."""
    writer = _Listing()
    dtypes = {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}
    for buffer in program.inputs:
        writer.emit(f"input {buffer.name}: {buffer.layout}", buffer.origins)
    for buffer in program.buffers:
        if isinstance(buffer, ExternBuffer):
            call = buffer.data
            position = "" if buffer.position is None else f"[{buffer.position}]"
            writer.emit(f"{buffer.name}: {buffer.layout}", buffer.origins)
            with writer.indent():
                arguments = [_argument_text(a) for a in call.args]
                arguments += [f"{key}={_argument_text(value)}" for key, value in call.kwargs.items()]
                text = f"extern {call.operator}({', '.join(arguments)}){position}  # {call.reason}"
                writer.emit(text, buffer.origins)
            continue
        _computed_lines(writer, buffer, *(analyse(buffer, dtypes) if intervals else (record(buffer, dtypes), None)))
    for position, output in enumerate(program.outputs):
        what = repr(output.constant) if output.name is None else f"{output.name} as {output.layout}"
        writer.emit(f"output {position}: {what}", output.origins)
    return writer.lines(), tuple(writer.remarks)


def _computed_lines(writer: _Listing, buffer: ComputedBuffer, body: LoopBody, found: Remarks | None) -> None:
    data = buffer.data
    writer.emit(f"{buffer.name}: {buffer.layout}", buffer.origins, found.about if found else "")
    with writer.indent():
        writer.emit(f"for {heading(data, body)}:", buffer.origins)
        with writer.indent():
            _write_body(writer, body, found.statements if found else {})
            if isinstance(data, Pointwise):
                last = f"yield tmp{body.result}"
            elif isinstance(data, Scatter):
                verb = "store" if data.kind == "store" else "merge"
                last = f"{verb} tmp{body.result} into {data.base}[{body.target}]"
            else:
                last = f"merge tmp{body.result}"
            writer.emit(last, buffer.origins, found.last if found else "")
        if body.epilogue is not None:
            writer.emit("then:", buffer.origins)
            with writer.indent():
                _write_body(writer, body.epilogue, found.epilogue if found else {})
                writer.emit(f"yield tmp{body.epilogue.result}", buffer.origins)


def heading(data: Computed, body: LoopBody) -> str:
    """The loops of a node, and what is merged over which of them in which dtype."""
    if isinstance(data, Scan):
        outer = data.ranges[: data.axis] + data.ranges[data.axis + 1 :]
        along = _loops(body.reduction_indices, (data.ranges[data.axis],))
        loops = _loops(body.indices, outer)
        return f"{loops}: {data.kind} of prefixes over {along} in {dtype_name(data.accumulate_dtype)}"
    loops = _loops(body.indices, data.ranges)
    if isinstance(data, Reduction):
        merged = _loops(body.reduction_indices, data.reduction_ranges)
        return f"{loops}: {data.kind} over {merged} in {dtype_name(data.accumulate_dtype)}"
    if isinstance(data, Template):
        merged = _loops(body.reduction_indices, (data.depth,))
        return f"{loops}: matrix product over {merged} in {dtype_name(data.accumulate_dtype)}"
    if isinstance(data, Scatter):
        return f"{loops}: scatter by {data.kind}"
    return loops


def _loops(symbols: tuple, extents: tuple[int, ...]) -> str:
    return ", ".join(f"{s} < {n}" for s, n in zip(symbols, extents, strict=True)) or "one element"


def _argument_text(argument: Any) -> str:
    if isinstance(argument, BufferArgument):
        return argument.name
    if isinstance(argument, (tuple, list)):
        return "[" + ", ".join(_argument_text(a) for a in argument) + "]"
    return repr(argument)


def format_program(program: LoopProgram, intervals: bool = False) -> str:
    """The listing as plain text."""
    return source_of(program_lines(program, intervals))
