"""Writing at subscripts read from data: the scatters (Table 6.1)."""

from __future__ import annotations

from ...errors import CodegenError
from ...options import DeviceSpec, Options
from ...schedule.records import ScheduleNode
from .loops import Emission
from .plan import LoopPlan


def plan_scatter(node: ScheduleNode, device: DeviceSpec, options: Options, bytes_read: int) -> LoopPlan:
    raise CodegenError(f"{node.name}: a scatter has no C++ generator yet")


def write_scatter(emission: Emission) -> None:
    raise CodegenError(f"{emission.node.name}: a scatter has no C++ generator yet")
