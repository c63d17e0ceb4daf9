"""Products of small matrices: loops laid out by hand, with holes for compute functions."""

from __future__ import annotations

from ...errors import CodegenError
from ...options import DeviceSpec, Options
from ...schedule.records import ScheduleNode
from .loops import Emission
from .plan import LoopPlan


def plan_template(node: ScheduleNode, device: DeviceSpec, options: Options, bytes_read: int) -> LoopPlan:
    raise CodegenError(f"{node.name}: a template has no C++ generator yet")


def write_template(emission: Emission) -> None:
    raise CodegenError(f"{emission.node.name}: a template has no C++ generator yet")
