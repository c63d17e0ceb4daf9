"""The schedules TVM's rules choose for a description (Section 12.3).

TVM separates algorithm and schedule: a description can be scheduled by hand, by rules or by a measured search. Here it
is rules, three kinds in a row: *AutoInline* composes what is computed elementwise into its readers, as Section 6.3 does
from the start; the CPU rules of *dlight* (matrix times vector, and row-wise chains such as softmax) take a whole
function; and what they leave is scheduled as TVM's tutorials do by hand, the outer axes in parallel and the innermost
one in vectors. The search (MetaSchedule) is not offered: in release 0.27.0.post1, making its context ends the process.
"""

from __future__ import annotations

from typing import Any

SCHEDULES = ("rules", "none")
LANES_BYTES = 64
#: Fewer elements than these are not worth waking a thread for.
SERIAL_ELEMENTS = 16384
#: Characters of a stage that is still composed into its readers: lowering made a buffer of a larger one on purpose.
LONGEST_INLINED = 4000


def scheduled(function: Any, target: Any, schedule: str, by_rows: bool = True) -> Any:
    """The module of ``function`` after the rules, or as it is for "none". ``by_rows``: dlight's rules may be asked.
    They compute all links of a chain for each row, and so a product once for each element of its reader."""
    import tvm
    from tvm import s_tir
    from tvm.s_tir import dlight

    module = tvm.IRModule({"main": function})
    if schedule == "none":
        return module
    inlined = _inlined(s_tir.Schedule(module))
    if by_rows:
        try:
            with target:
                module = dlight.ApplyDefaultSchedule(dlight.cpu.GEMV(), dlight.cpu.Reduction())(inlined.mod)
            if _is_scheduled(module["main"]):
                return module
        except s_tir.ScheduleError:
            pass  # the rule looks at the shape of the chain, and finds out only on the way that a link is a result
    plan = s_tir.Schedule(inlined.mod)
    for block in plan.get_child_blocks(plan.get_sblock("root")):
        _spread(plan, block)
    return plan.mod


def _inlined(plan: Any) -> Any:
    from tvm.s_tir import meta_schedule

    rules = meta_schedule.schedule_rule.ScheduleRule.create("llvm")
    inline = [rule for rule in rules if type(rule).__name__ in ("AutoInline", "InlineConstantScalars")]
    for rule in inline:
        for block in plan.get_child_blocks(plan.get_sblock("root")):
            if len(plan.get(block).script()) < LONGEST_INLINED:
                plan = rule.apply(plan, block)[0]
    return plan


def _is_scheduled(function: Any) -> bool:
    return "T.parallel" in function.script() or "T.vectorized" in function.script()


def _spread(plan: Any, block: Any) -> None:
    """Outer axes in parallel, the innermost in vectors where it is no reduction."""
    loops = plan.get_loops(block)
    kinds = [int(axis.iter_type) for axis in plan.get(block).iter_vars]  # 0: an axis of the result, 2: a reduction
    if len(kinds) != len(loops) or not loops:
        return
    extents = [int(plan.get(loop).extent) for loop in loops]
    spatial = [k for k, kind in enumerate(kinds) if kind == 0]
    leading = [k for k in spatial if k == spatial.index(k)]  # those before the first reduction
    work = 1
    for extent in extents:
        work *= extent
    is_pointwise = len(spatial) == len(loops)
    if is_pointwise and extents[-1] >= 2:
        lanes = max(1, LANES_BYTES // 4)
        inner = loops[-1]
        if extents[-1] > lanes:
            outer, inner = plan.split(loops[-1], factors=[None, lanes])
            loops = [*loops[:-1], outer]
        else:
            loops, leading = loops[:-1], leading[:-1]
        plan.vectorize(inner)
    outer = [loops[k] for k in leading if k < len(loops)]
    if outer and work >= SERIAL_ELEMENTS:
        plan.parallel(plan.fuse(*outer) if len(outer) > 1 else outer[0])
