"""When every stage is right on its own and what runs is not: what a version was made of, whom it serves (Section 2).

A compiled function may hold a version that is not valid for the inputs it serves: a guard is missing or too weak, or
something the program depends on is not in the key. A version made for these very inputs is at hand, so the two are
compared: keys first, then the captured graphs, whose first different node says what has changed.
"""

from __future__ import annotations

from typing import Any

from ..measure.agreement import Difference
from ..specialize.guards import failing_guards
from .record import Culprit
from .sample import Sample


def held_culprit(given: Any, fresh: Any, sample: Sample, difference: Difference | None) -> Culprit:
    """Why a compiled function is wrong on inputs that a fresh compilation serves rightly."""
    fresh = getattr(fresh, "dispatcher", fresh)
    try:
        (args, kwargs), (again, more) = sample.copies(), sample.copies()
        held, made = given.specialize(*args, **kwargs), fresh.specialize(*again, **more)
    except Exception as error:
        return Culprit("dispatch", "the versions it holds", f"{type(error).__name__}: {error}", difference)
    part = f"version {held.number}"
    failing = failing_guards(held.key, made.key)
    if failing:
        reason = f"it was served although its guards do not hold: {', '.join(map(str, failing[:3]))}"
        return Culprit("dispatch", part, reason, difference)
    before, now = _calls(held), _calls(made)
    for old, new in zip(before, now, strict=False):
        if old.format() != new.format():
            where = (new.location,) if new.location else ()
            reason = (
                f"its key equals that of these inputs, but it was made of another program: {old.format()}, now "
                f"{new.format()}; what changed is not in the key"
            )
            return Culprit("dispatch", part, reason, difference, where, new.origins)
    if len(before) != len(now):
        reason = f"its key equals that of these inputs, but its graph has {len(before)} calls, now {len(now)}"
        return Culprit("dispatch", part, reason, difference)
    reason = "its key and its graph are those of a fresh version, which is right: its artifact has changed, or is stale"
    return Culprit("dispatch", part, reason, difference)


def _calls(version: Any) -> tuple[Any, ...]:
    graph = getattr(version.compilation, "graph", None)
    return graph.calls if graph is not None else ()


def fresh_culprit(compiled: Any, run: Any, difference: Difference | None) -> Culprit:
    """Why a fresh compilation is wrong although each of its stages is right: it was restored from the cache, its flat
    call is wrong, or only what stands around that."""
    dispatcher = getattr(compiled, "dispatcher", compiled)
    version = dispatcher.versions[0] if getattr(dispatcher, "versions", ()) else None
    if version is None:
        reason = "the function ran eagerly, or compiling it failed"
        return Culprit("dispatch", "no version was made", reason, difference)
    region = version.compilation
    right = False
    try:
        right = run.judge(run.regional(region.call), False).agrees
    except Exception:
        right = False
    if right:
        reason = "the region is right when it is called with flat tensors, so binding, rebuilding or dispatch is wrong"
        return Culprit("dispatch", f"version {version.number}", reason, difference)
    if getattr(region, "restored", False):
        reason = "its plan was restored from the cache and is not what the stages make now; clear the cache"
        return Culprit("artifact", f"plan {region.plan_key}", reason, difference)
    reason = "every stage is right on its own, and what is put together of them is not"
    return Culprit("artifact", "the loaded region", reason, difference)
