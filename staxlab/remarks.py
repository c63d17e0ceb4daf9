"""What is said under ``STAXLAB_LOGS`` as the stages of a compilation end (:mod:`staxlab.logs` has the topics).

Under ``stages`` a line each, with milliseconds and what the stage delivered; the record itself, as it prints in a
terminal, under the topic of its own. Stages that a plan from the cache replaces do not run; their topics say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import logs
from .compilation import RESTORABLE, Compilation, Stage

# Stage -> the topics its record is told under, with what is told. A record that says nothing new has no row: what
# the artifact is made of is told by the build and the cache.
_TOLD: dict[str, tuple[tuple[str, Callable[[Any], Any]], ...]] = {
    "capture": (("graph", str),),
    "transforms": (("transforms", str),),
    "joint": (("joint", str),),
    "partition": (("joint", str),),
    "operators": (("operators", str),),
    "loops": (("loops", str),),
    "schedule": (
        ("fusion", lambda schedule: "\n".join(map(str, (schedule, *schedule.decisions)))),
        ("memory", lambda schedule: schedule.memory.format()),
    ),
    "kernels": (("kernels", str),),
    "wrapper": (("wrapper", str),),
    "validation": (("kernels", str),),
    "outside": (("graph", str),),
}


def stage_ended(compilation: Compilation, stage: Stage) -> None:
    """Say what the stage delivered, if anybody listens."""
    record, name = compilation.records[stage.name], compilation.name
    milliseconds = 1e3 * compilation.timings[stage.name]

    def line() -> str:
        from .measure.compilation_flow import summary  # what nobody listens to costs no import

        return f"{name}: {stage.title} {milliseconds:.1f} ms: {summary(stage.name, record)}".removesuffix(": ")

    if stage.name == "artifact" and compilation.restored:
        logs.say("stages", lambda: f"{name}: {compilation.restored_text}")
        for topic in dict.fromkeys(topic for skipped in RESTORABLE for topic, _ in _TOLD[skipped]):
            logs.say(topic, f"{name}: restored from the cache, nothing is made anew; STAXLAB_PLANS=0 runs every stage")
    logs.say("stages", line)
    for topic, told in _TOLD.get(stage.name, ()):
        logs.say(topic, lambda told=told: f"{name}, {stage.title} ({stage.section}):\n{told(record)}")
