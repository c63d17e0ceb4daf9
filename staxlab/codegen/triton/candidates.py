"""Which launch configurations of a kernel are worth measuring (Section 9.6): a few by form, and the space around them.

The rules of :mod:`.launch` give one configuration. A search needs more: a candidate set of one to six (Algorithm 9.1),
made from the form of the kernel, the sizes and the direction of the reduction, the rule's own always first; and the
configuration space (Definition 9.2) that coordinate descent and random search walk in. Here both are written down, and
:meth:`KernelTuning.kernel` makes the kernel of any of them: the text changes with the configuration, since masks are
dropped where blocks divide and a row that fits into its block needs no loop.

What the variations are for: a thread with more elements has more loads in flight; one with fewer needs fewer registers,
so that more warps are resident (Section 9.1). A reduction over a long row may be held whole or walked along, and a walk
may fetch its next step early (``num_stages``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...errors import CodegenError
from ...options import DeviceSpec
from ...schedule.records import Schedule, ScheduleNode
from ..configurations import Configuration, ConfigurationSpace
from .tiling import PERSISTENT_INNER, next_power_of_two

MOST_CANDIDATES = 6
WARPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 3, 4)
REACH = 8  # how many times larger or smaller than the rule's a block of the space may be
LARGEST_TILE = 1 << 20  # elements of a block that Triton allows
MOST_PER_THREAD = 64  # elements: at four registers for each, more than a thread can have (255)


@dataclass(frozen=True)
class Variation:
    """A change of the rule's configuration: factors of the first and the last block and of the warps, and stages."""

    first: float = 1.0
    last: float = 1.0
    warps: float = 1.0
    stages: int | None = None


#: By form. Of a reduction, the first block are rows and the last elements of a row.
VARIATIONS: dict[str, tuple[Variation, ...]] = {
    "line": (
        Variation(last=2), Variation(last=2, warps=2), Variation(last=4, warps=2), Variation(last=0.5, warps=0.5),
        Variation(warps=0.5), Variation(warps=2),
    ),
    "rectangle": (
        Variation(warps=0.5), Variation(first=0.5), Variation(last=0.5), Variation(first=2, last=0.5),
        Variation(first=0.5, last=2), Variation(first=2),
    ),
    "persistent": (
        Variation(warps=2), Variation(warps=0.5), Variation(first=2), Variation(first=2, warps=2), Variation(first=0.5),
        Variation(first=4, warps=2),
    ),
    "long row": (
        Variation(warps=2), Variation(warps=0.5), Variation(last=0.5), Variation(last=0.25),
        Variation(last=0.25, stages=3),
    ),
    "looped": (
        Variation(last=0.5, warps=0.5), Variation(warps=2), Variation(warps=0.5), Variation(last=2),
        Variation(stages=3), Variation(last=0.5, stages=3),
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class KernelTuning:
    """What a search may vary in one kernel: ``names`` of the block sizes, the ``sizes`` they cut, and the ``rule``, the
    configuration that the rules chose. ``form`` is "pointwise", "persistent" or "looped".

    A configuration is a tuple: the block sizes in the order of ``names``, then warps, then stages.
    """

    schedule: Schedule = field(repr=False)
    node: ScheduleNode = field(repr=False)
    suffix: str
    device: DeviceSpec = field(repr=False)
    form: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    rule: Configuration

    @property
    def parameters(self) -> tuple[str, ...]:
        return (*self.names, "num_warps", "num_stages")

    @cached_property
    def space(self) -> ConfigurationSpace:
        """The configurations around the rule's (Definition 9.2): blocks up to ``REACH`` times larger or smaller, no
        larger than the problem asks for; all numbers of warps; stages where there is a loop to overlap."""
        sets: dict[str, list[int]] = {}
        for name, size, block in zip(self.names, self.sizes, self.rule, strict=False):
            most = max(min(block * REACH, next_power_of_two(max(size, 1))), block)
            least = max(block // REACH, 1)
            if name == "R0_BLOCK":
                least = max(least, min(block, PERSISTENT_INNER))  # a short row is never worth a loop
            sets[name] = [1 << k for k in range(least.bit_length() - 1, most.bit_length()) if least <= 1 << k <= most]
        sets["num_warps"] = list(WARPS)
        has_loop = "R0_BLOCK" in sets and sets["R0_BLOCK"][0] < self.sizes[self.names.index("R0_BLOCK")]
        sets["num_stages"] = sorted({*STAGES, self.rule[-1]}) if has_loop else [self.rule[-1]]
        return ConfigurationSpace.of(sets)

    @cached_property
    def candidates(self) -> tuple[Configuration, ...]:
        """One to six configurations, the rule's first. Of one that is not worth measuring none of the others is."""
        found = [self.rule]
        if 0 in self.sizes:
            return (self.rule,)
        for configuration in self._varied():
            if configuration in self.space and self.feasible(configuration) and self._is_busy(configuration):
                found.append(configuration)
        found = list(dict.fromkeys(found))
        return tuple(found[:MOST_CANDIDATES])

    def instances(self, configuration: Configuration) -> int:
        """Program instances that a configuration launches; an instance walks along the whole of its rows."""
        cut = [-(-s // b) for n, s, b in zip(self.names, self.sizes, configuration, strict=False) if n != "R0_BLOCK"]
        return math.prod(cut)

    def _is_busy(self, configuration: Configuration) -> bool:
        """No thread without an element, and no multiprocessor without an instance where the rule has one for each."""
        enough = min(self.device.multiprocessors, self.instances(self.rule))
        wide = math.prod(configuration[:-2]) >= 32 * configuration[-2]
        return wide and self.instances(configuration) >= enough

    def _varied(self) -> Iterator[Configuration]:
        *blocks, warps, stages = self.rule
        for variation in VARIATIONS[self._kind]:
            changed = list(blocks)
            changed[0] = changed[0] * variation.first
            changed[-1] = changed[-1] * variation.last
            numbers = (*changed, warps * variation.warps, variation.stages or stages)
            if all(number == int(number) for number in numbers):
                yield tuple(int(number) for number in numbers)

    @property
    def _kind(self) -> str:
        if self.form == "pointwise":
            return "line" if len(self.names) == 1 else "rectangle"
        long = self.form == "persistent" and self.rule[self.names.index("R0_BLOCK")] > PERSISTENT_INNER
        return "long row" if long else self.form

    def feasible(self, configuration: Configuration) -> bool:
        """Whether it is worth compiling: Triton's limit of a block, and what a thread can hold in registers."""
        tile, warps = math.prod(configuration[:-2]), configuration[-2]
        return tile <= LARGEST_TILE and tile <= MOST_PER_THREAD * 32 * warps

    def kernel(self, configuration: Configuration) -> Any:
        """The :class:`~staxlab.codegen.kernel.Kernel` of a configuration. CodegenError for one that is not feasible or
        that the generator cannot express, OptionError for one outside the space."""
        from .generate import triton_kernel

        *blocks, warps, stages = self.space.require(configuration)
        if configuration != self.rule and not self.feasible(configuration):
            raise CodegenError(f"{self.node.name}: no thread can hold its share of {self.space.words(configuration)}")
        given = (dict(zip(self.names, blocks, strict=True)), warps, stages)
        return triton_kernel(self.schedule, self.node, self.suffix, self.device, given)


def tuning_of(
    schedule: Schedule, node: ScheduleNode, suffix: str, device: DeviceSpec, form: Any, launch: Any
) -> KernelTuning:
    """What may be varied in a kernel of this form (a :class:`~.tiling.Form`) whose rules chose ``launch``. O(1)."""
    numel = {dim.block_name: dim.numel for dim in form.space.dims}
    names = tuple(launch.blocks)
    rule = (*launch.blocks.values(), launch.num_warps, launch.num_stages)
    return KernelTuning(schedule, node, suffix, device, form.kind, names, tuple(numel[n] for n in names), rule)
