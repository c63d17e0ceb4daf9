"""Prefixes along one loop: the scans (Table 6.1)."""

from __future__ import annotations

from ...errors import CodegenError
from ...options import DeviceSpec, Options
from ...schedule.records import ScheduleNode
from .loops import Emission
from .plan import LoopPlan


def plan_scan(node: ScheduleNode, device: DeviceSpec, options: Options, bytes_read: int) -> LoopPlan:
    raise CodegenError(f"{node.name}: a scan has no C++ generator yet")


def write_scan(emission: Emission) -> None:
    raise CodegenError(f"{emission.node.name}: a scan has no C++ generator yet")
