"""How a region has fared with CUDA Graphs (Section 9.9): a snapshot that prints and draws itself.

``compilation.graphs`` makes one; what keeps the counts is :class:`.graphs.GraphedRegion`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..options import Decision
from ..provenance import SourceLocation
from .graph_checks import GraphCheck


@dataclass(frozen=True)
class RecordingInfo:
    """A recording: how often it was replayed, inputs copied before each replay (number, bytes), bytes of the results in
    its memory, and whether somebody holds some of them."""

    number: int
    replays: int
    copied_inputs: int
    copied_bytes: int
    result_bytes: int
    held: bool


@dataclass(frozen=True)
class GraphReport:
    """How a region has fared with CUDA Graphs: ``state``, the static ``check`` with its reasons, the recordings, calls
    that were replayed, calls that ran as they are by reason, and recordings given up for others."""

    name: str
    where: SourceLocation | None
    state: str
    cause: str
    check: GraphCheck
    inputs: str = "check"
    outputs: str = "reuse"
    recordings: tuple[RecordingInfo, ...] = ()
    replays: int = 0
    direct: tuple[tuple[str, int], ...] = ()
    dropped: int = 0

    @property
    def direct_calls(self) -> int:
        return sum(count for _, count in self.direct)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self.check.decisions

    def summary(self) -> str:
        if not self.check.allowed:
            return f"{self.state}: {self.check.obstacles[0]}"
        if self.cause:
            return f"{self.state}: {self.cause}"
        recordings = f"{len(self.recordings)} recording{'' if len(self.recordings) == 1 else 's'}"
        return f"{self.state}, {recordings}, {self.replays} calls replayed, {self.direct_calls} run as they are"

    def format(self) -> str:
        """The same as text."""
        lines = [f"CUDA Graphs of {self.name}" + (f" ({self.where})" if self.where else "") + f": {self.summary()}"]
        lines += [f"  {decision}" for decision in self.decisions]
        lines += [f"  remedy: {obstacle.remedy}" for obstacle in self.check.obstacles[:1]]
        lines.append(f"  inputs: {self.inputs}, outputs: {self.outputs}")
        for info in self.recordings:
            copies = f", {info.copied_inputs} inputs ({info.copied_bytes:,} bytes) copied in" * bool(info.copied_inputs)
            held = ", results held" if info.held else ""
            results = f"{info.result_bytes:,} bytes of results"
            lines.append(
                f"  recording {info.number}: {info.replays} replay{'s' * (info.replays != 1)}, {results}{copies}{held}"
            )
        for reason, count in self.direct:
            lines.append(f"  run as it is, {'once' if count == 1 else f'{count} times'}: {reason}")
        if self.dropped:
            lines.append(f"  {self.dropped} recordings given up")
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)
