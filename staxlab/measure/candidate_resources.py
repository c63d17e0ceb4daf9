"""What the compiler makes of each candidate configuration, without a GPU (Algorithm 9.1, lines 4 and 5).

Registers and spills are properties of the machine code, and that can be made ahead of time. So which candidates are
ruled out before anything is measured can be read here; which of the others is fastest cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..codegen.configurations import Configuration
from ..codegen.kernel import Kernel
from ..codegen.triton.resources import Resources, resource_usage
from ..errors import BuildError, CodegenError, OptionError
from .tables import Table, Tabular


@dataclass(frozen=True)
class CandidateEntry:
    """A configuration with what it takes, or with why it cannot be compiled (``resources`` is then None)."""

    configuration: Configuration
    resources: Resources | None
    excluded: str = ""


@dataclass(frozen=True, repr=False)
class CandidateResources(Tabular):
    """The candidates of one kernel as compiled for one architecture. The first is the rule's own configuration."""

    kernel: str
    capability: int
    names: tuple[str, ...]
    entries: tuple[CandidateEntry, ...]

    @property
    def eligible(self) -> tuple[Configuration, ...]:
        """What is left to be measured: what compiles without spilling, or the first alone if nothing does."""
        left = tuple(entry.configuration for entry in self.entries if not entry.excluded)
        return left or (self.entries[0].configuration,)

    def table(self) -> Table:
        rows = []
        for entry in self.entries:
            words = ", ".join(f"{name}={value}" for name, value in zip(self.names, entry.configuration, strict=True))
            needs = entry.resources
            figures = (needs.registers, needs.spills, needs.shared) if needs else ("", "", "")
            rows.append((words, *figures, entry.excluded or "to be measured"))
        columns = ("configuration", "registers per thread", "bytes spilled per thread", "shared bytes", "")
        nothing = all(entry.excluded for entry in self.entries)
        note = "nothing is left to be measured: the rule's configuration is kept" if nothing else ""
        return Table.build(f"Candidates of {self.kernel} on sm_{self.capability}", columns, rows, [note])


def candidate_resources(
    kernel: Kernel, configurations: Iterable[Configuration] | None = None, capability: int | None = None
) -> CandidateResources:
    """Compile the candidates of a Triton kernel (or other ``configurations`` of its space) ahead of time.

    ``capability``: 90 for sm_90; default, that of the kernel's device. Some seconds per configuration. OptionError for
    a kernel that has no configurations, or without any given; MissingDependencyError without Triton. What does not
    compile is an entry that says so.
    """
    tuning = kernel.tuning
    if tuning is None:
        raise OptionError(
            f"{kernel.name} has no launch configuration to vary", remedy="a Triton kernel of staxlab.explain"
        )
    given = tuple(tuning.space.require(c) for c in (tuning.candidates if configurations is None else configurations))
    if not given:
        raise OptionError("no candidates: give at least one configuration")
    entries = []
    for configuration in given:
        try:
            found = resource_usage(tuning.kernel(configuration), capability)
        except (CodegenError, BuildError) as error:
            reason = error.what.split("\n")[0].replace(f" of {tuning.space.words(configuration)}", "")
            entries.append(CandidateEntry(configuration, None, f"out: {reason[:120]}"))
            continue
        entries.append(CandidateEntry(configuration, found, "out: registers spill" if found.spills else ""))
    return CandidateResources(
        kernel.name, capability or kernel.device.compute_capability, tuning.space.names, tuple(entries)
    )
