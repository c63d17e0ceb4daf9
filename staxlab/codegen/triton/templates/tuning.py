"""What a search may vary in a product: tiles, warps, stages, and which template (Sections 9.6 and 9.8).

The interface is that of :class:`~staxlab.codegen.triton.candidates.KernelTuning`, for kernels without a template, so
the same searches run on either. The candidates are tiles of the sizes that such units are usually fed; the space around
them holds everything that fits into registers and shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ....errors import CodegenError
from ....options import DeviceSpec
from ....schedule.records import Schedule, ScheduleNode
from ...configurations import Configuration, ConfigurationSpace
from ..tiling import next_power_of_two
from .configurations import (
    GROUP_M,
    MOST_ACCUMULATORS,
    SHARED_MEMORY,
    SMALLEST,
    capability_of,
    shared_bytes,
)
from .tile import Product

#: What the values of the parameter TEMPLATE stand for: the accelerator fetches, or fetches and stores.
TEMPLATES = {1: "tiled", 2: "persistent-tma", 4: "persistent-tma"}
MOST_CANDIDATES = 6

#: (BLOCK_M, BLOCK_N, BLOCK_K, TEMPLATE, warps, stages) worth measuring, of 2-byte operands and of float32 ones.
HALF_CANDIDATES = (
    (128, 256, 64, 4, 8, 3), (128, 256, 64, 2, 8, 3), (128, 128, 64, 4, 8, 4), (128, 128, 64, 1, 8, 3),
    (128, 256, 64, 1, 8, 3), (256, 128, 64, 2, 8, 3), (64, 256, 64, 1, 4, 4), (128, 64, 64, 1, 4, 4),
    (64, 64, 64, 1, 4, 4), (64, 128, 32, 1, 4, 4), (32, 64, 64, 1, 4, 4),
)  # fmt: skip
FLOAT_CANDIDATES = (
    (128, 128, 16, 1, 8, 3), (128, 64, 32, 1, 8, 3), (64, 128, 16, 1, 4, 3), (64, 64, 32, 1, 4, 3),
    (64, 32, 32, 1, 4, 3), (128, 128, 32, 2, 8, 3),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ProductTuning:
    """What a search may vary in the kernel of a template node. ``fetched``: whether the tensor memory accelerator can
    fetch its operands, so that TEMPLATE may be 2, or 4 where it also stores. A configuration is (BLOCK_M, BLOCK_N,
    BLOCK_K, GROUP_M, TEMPLATE, num_warps, num_stages)."""

    schedule: Schedule = field(repr=False)
    node: ScheduleNode = field(repr=False)
    suffix: str
    device: DeviceSpec = field(repr=False)
    form: str
    rule: Configuration
    fetched: bool

    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "TEMPLATE")

    @property
    def parameters(self) -> tuple[str, ...]:
        return (*self.names, "num_warps", "num_stages")

    @cached_property
    def product(self) -> Product:
        return Product.of(self.node)

    @property
    def sizes(self) -> tuple[int, ...]:
        """What the blocks cut: rows, columns, depth."""
        return self.product.sizes[1:]

    @cached_property
    def space(self) -> ConfigurationSpace:
        """Tiles up to 256 x 256 x 128 that are no larger than the product asks for, and the rule's (Definition 9.2)."""
        sets: dict[str, set[int]] = {}
        for name, size, most, value in zip(self.names, self.sizes, (256, 256, 128), self.rule, strict=False):
            limit = max(min(most, next_power_of_two(max(size, 1))), SMALLEST)
            sets[name] = {block for block in (16, 32, 64, 128, 256) if block <= limit} | {value}
        sets["GROUP_M"] = {4, 8, 16}
        sets["TEMPLATE"] = set(TEMPLATES) if self.fetched else {1}
        sets["num_warps"] = {1, 2, 4, 8}
        sets["num_stages"] = {1, 2, 3, 4, 5, 6}
        return ConfigurationSpace.of(sets)

    @cached_property
    def candidates(self) -> tuple[Configuration, ...]:
        """One to six configurations, the rule's first."""
        is_float = self.product.form.operands == torch.float32
        found = [self.rule]
        for m, n, k, template, warps, stages in FLOAT_CANDIDATES if is_float else HALF_CANDIDATES:
            configuration = (m, n, k, GROUP_M, template, warps, stages)
            if configuration in self.space and self.feasible(configuration) and configuration not in found:
                found.append(configuration)
        return tuple(found[:MOST_CANDIDATES])

    def feasible(self, configuration: Configuration) -> bool:
        """Whether it is worth compiling: accumulators in registers (``MOST_ACCUMULATORS`` of a thread, 4 at least),
        stages in shared memory with 8 KiB to spare, and for the accelerator's tiles the shape that it is used for."""
        m, n, k, _, template, warps, stages = configuration
        itemsize = self.product.form.operands.itemsize
        shared = shared_bytes({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, stages, itemsize)
        if template == 4:  # the tile of the result passes through shared memory, too
            shared += m * n * max(self.schedule.layouts[buffer].dtype.itemsize for buffer in self.node.buffers)
        if template > 1 and (m < 64 or warps < 4 or min(n, k) * itemsize < 32):
            return False
        room = SHARED_MEMORY[capability_of(self.device)] - (8 << 10)
        return 4 <= m * n // (32 * warps) <= MOST_ACCUMULATORS and shared <= room

    def kernel(self, configuration: Configuration) -> Any:
        """The :class:`~staxlab.codegen.kernel.Kernel` of a configuration. CodegenError for one that is not feasible,
        OptionError for one outside the space."""
        from .kernel import product_kernel

        m, n, k, group, template, warps, stages = self.space.require(configuration)
        if configuration != self.rule and not self.feasible(configuration):
            words = self.space.words(configuration)
            raise CodegenError(f"{self.node.name}: registers or shared memory cannot hold the tiles of {words}")
        blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group}
        if template > 1:
            blocks["PROGRAMS"] = self.device.multiprocessors
        if template == 4:
            blocks["TMA_STORE"] = 1
        return product_kernel(self.schedule, self.node, self.suffix, self.device, (blocks, warps, stages))


def tuning_of_product(
    schedule: Schedule, node: ScheduleNode, suffix: str, device: DeviceSpec, given: Any, fetched: bool
) -> ProductTuning:
    """What may be varied in the kernel of a template node for which the rule chose ``given``. O(1)."""
    blocks, warps, stages = given
    template = 4 if "TMA_STORE" in blocks else 2 if "PROGRAMS" in blocks else 1
    rule = (*(blocks[name] for name in ProductTuning.names[:4]), template, warps, stages)
    return ProductTuning(schedule, node, suffix, device, TEMPLATES[template], rule, fetched)
