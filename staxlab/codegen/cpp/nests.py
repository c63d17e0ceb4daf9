"""The loops of one node: planned and written as its kind asks for."""

from __future__ import annotations

from ...options import DeviceSpec, Options
from ...provenance import CodeWriter
from ...schedule.records import ScheduleNode
from .columns import ROWS_AT_ONCE, write_outer
from .loops import Emission, levels, write_pointwise
from .plan import LoopPlan, plan
from .reductions import write_empty_reduction, write_inner
from .scan_plan import plan_scan
from .scans import write_scan
from .scatters import plan_scatter, write_scatter
from .templates import plan_template, write_template
from .tiles import write_tiles
from .values import Scope

#: The kinds of node that choose and write their loops by themselves.
_PLANS = {"scan": plan_scan, "scatter": plan_scatter, "template": plan_template}
_WRITERS = {"scan": write_scan, "scatter": write_scatter, "template": write_template}


def plan_loops(node: ScheduleNode, device: DeviceSpec, options: Options, bytes_read: int) -> LoopPlan:
    """The loops of a node that has something to compute; ``bytes_read`` is what it reads from memory."""
    return _PLANS.get(node.kind, plan)(node, device, options, bytes_read)


def prepare(scope: Scope, loop_plan: LoopPlan) -> None:
    """Make a scope ready for the loops of a plan."""
    nested = loop_plan.outer + (loop_plan.inner if loop_plan.form == "inner" else ())
    scope.vector, scope.lanes, scope.prefetch = loop_plan.vector, loop_plan.lanes, loop_plan.prefetch
    # A vector loop that is part of the parallel loop leaves no room for code outside the innermost body.
    whole_nest = loop_plan.parallel and loop_plan.parallel_innermost and loop_plan.form == "pointwise"
    scope.level = levels(nested, len(nested) + 1 if whole_nest else loop_plan.parallel)
    if loop_plan.strips:
        scope.prefetch_rows = (loop_plan.inner[-1], ROWS_AT_ONCE)
    scope.writers = [CodeWriter() for _ in range(len(nested) + 2)]


def write_loops(emission: Emission) -> None:
    """The loops of a node as planned."""
    node, loop_plan = emission.node, emission.plan
    if node.kind == "reduction" and node.reduction_numel == 0:
        write_empty_reduction(emission)
    elif node.kind in _WRITERS:
        _WRITERS[node.kind](emission)
    elif loop_plan.tile is not None:
        write_tiles(emission)
    elif loop_plan.form == "pointwise":
        write_pointwise(emission)
    elif loop_plan.form == "inner":
        write_inner(emission)
    else:
        write_outer(emission)
