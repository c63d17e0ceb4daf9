"""The compilation modes (Section 11.5, Table 11.1): presets of options, and what each acts on in the model.

A mode sets some options, and ``options=`` then overrides them one by one, so ``mode="max-autotune"`` with
``options={"cuda_graphs": False}`` is ``mode="max-autotune-no-cudagraphs"``. The three groups of options act on three
parameters of the chapter's model of a call's time:

* CUDA Graphs on ``n * t_launch``: the host pays for one submission instead of n launches (Section 9.9);
* autotuning on ``|C|``, how many candidates of the configuration space are measured (Section 9.6);
* fusion on ``n`` and on ``Q``, the kernels and the bytes they move (Section 7). Every mode fuses.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .options import MODES, Options

#: Option -> (symbol, what it is): the parameters of the model that the options of Section 11.5 act on.
ACTS_ON: dict[str, tuple[str, str]] = {
    "cuda_graphs": ("n * t_launch", "the host's time for launching n kernels"),
    "autotune": ("|C|", "the candidates of the configuration space that are measured"),
    "fuse": ("n and Q", "how many kernels there are, and how many bytes they move"),
}


@dataclass(frozen=True)
class ModeRow:
    """A mode: what it sets, and for each of :data:`ACTS_ON` the value that results."""

    name: str
    sets: tuple[tuple[str, Any], ...]
    values: tuple[tuple[str, Any], ...]

    @property
    def acts_on(self) -> tuple[str, ...]:
        """The parameters of the model in which the mode differs from the default."""
        return tuple(ACTS_ON[option][0] for option, _ in self.sets)


@dataclass(frozen=True)
class ModeTable:
    """Table 11.1, read off the presets that compiling uses."""

    rows: tuple[ModeRow, ...]

    def head(self) -> tuple[str, ...]:
        return ("mode", *ACTS_ON, "acts on")

    def cells(self) -> list[tuple[str, ...]]:
        """One row for each mode: its name, the value of each option, the parameters it acts on."""
        return [
            (row.name, *(_word(value) for _, value in row.values), ", ".join(row.acts_on) or "-") for row in self.rows
        ]

    def format(self) -> str:
        lines = [self.head(), *self.cells()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        table = ["  ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([*table, *(f"{option}: acts on {s}, {what}" for option, (s, what) in ACTS_ON.items())])

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from .view import mimebundle

        return mimebundle(self)


def mode_table() -> ModeTable:
    """The modes with what each sets (Table 11.1)."""
    rows = []
    for name, preset in MODES.items():
        if name is not None:
            options = dataclasses.asdict(Options.resolve(mode=name))
            rows.append(ModeRow(name, tuple(preset.items()), tuple((option, options[option]) for option in ACTS_ON)))
    return ModeTable(tuple(rows))


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, str(value))
