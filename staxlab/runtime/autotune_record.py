"""What a search found, kept on disk (Algorithm 9.1, lines 1 and 7).

A record is named by a hash of everything the finding depends on: the text of the kernel in the rule's configuration,
the method with the configurations it chooses from, the device's name, and the version of Triton. So nothing ever has to
be invalidated: an unchanged source on the same device is an unchanged conclusion, and whatever changes is looked for
under another name (Proposition 11.1). A record is an entry of the cache (:mod:`.cache`) like any other: a line with its
hash and, for anybody to read, JSON. One that does not match its hash, or does not say what a record must say, is as
good as absent: the search is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
from collections.abc import Iterable
from typing import Any

from ..codegen.configurations import Configuration, ConfigurationSpace
from ..codegen.kernel import Kernel
from ..errors import OptionError
from . import cache
from .autotune import Search, Trial

FORMAT = "staxlab-autotune-1"

log = logging.getLogger("staxlab.cache")


def key_of(kernel: Kernel, method: str, choices: Iterable[Configuration] | str, device: str, version: str) -> str:
    """The name of a record: a hash of the text of ``kernel`` (of the rule's configuration) and of the configuration
    itself, the method, what it chooses from, the device's name and Triton's version. 40 hexadecimal digits."""
    launch = kernel.launch
    rule = [sorted(launch["constants"].items()), launch["num_warps"], launch["num_stages"]]
    chosen_from = choices if isinstance(choices, str) else [list(choice) for choice in choices]
    parts = [FORMAT, kernel.source, rule, method, chosen_from, device, version]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def name_of(key: str) -> str:
    """The file of a record, in the cache directory."""
    return f"autotune-{key}.json"


def read(key: str, space: ConfigurationSpace) -> Search | None:
    """The search recorded under a key; None if there is none, or none that can be trusted."""
    content = cache.read_verified(name_of(key))
    if content is None:
        return None
    try:
        data = json.loads(content)
        if data["format"] != FORMAT:
            raise ValueError("it has another format")
        search = from_json(data["search"])
        if search.space != space:
            raise ValueError("it is about another space")
        return search
    except (ValueError, KeyError, TypeError, AttributeError, OptionError) as error:
        log.warning("the record %s cannot be used: %s", name_of(key), error)
        return None


def write(key: str, search: Search, kernel: str, device: str, version: str) -> None:
    """Keep a search, whole or not at all. A full or vanished disk is not raised. ``kernel``, ``device`` and ``version``
    are for those who read the file."""
    data = {"format": FORMAT, "kernel": kernel, "device": device, "triton": version, "search": to_json(search)}
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    cache.write_verified(name_of(key), text.encode(), title=f"{kernel} on {device}: {search.method}")


def clear() -> None:
    """Delete every record, and nothing else."""
    for path in cache.directory().glob("autotune-*.json"):
        with contextlib.suppress(OSError):
            path.unlink()


# --- JSON has no infinity ---------------------------------------------------------------------------------------------


def to_json(search: Search) -> dict[str, Any]:
    """A search as a dict of JSON types; :func:`from_json` is the inverse."""
    return {
        "method": search.method,
        "parameters": {parameter.name: list(parameter.values) for parameter in search.space.parameters},
        "chosen": list(search.chosen),
        "cost_s": _number(search.cost),
        "start": None if search.start is None else list(search.start),
        "reason": search.reason,
        "guarantee": search.guarantee,
        "statistic": search.statistic,
        "threshold": search.threshold,
        "evaluations": search.evaluations,
        "compilations": search.compilations,
        "bound": search.bound,
        "complete": search.complete,
        "subject": search.subject,
        "seed": search.seed,
        "before": None if search.before is None else to_json(search.before),
        "trials": [
            {
                "configuration": list(trial.configuration), "cost_s": _number(trial.cost), "verdict": trial.verdict,
                "round": trial.round, "readings": trial.readings, "noise": _number(trial.noise),
                "against": None if trial.against is None else list(trial.against), "required": trial.required,
            }
            for trial in search.trials
        ],
    }  # fmt: skip


def from_json(data: dict[str, Any]) -> Search:
    """The search a dict stands for. ValueError, KeyError, TypeError or OptionError for one that stands for none."""
    space = ConfigurationSpace.of(data["parameters"])
    trials = tuple(
        Trial(
            space.require(entry["configuration"]), _value(entry["cost_s"]), str(entry["verdict"]), int(entry["round"]),
            int(entry["readings"]), _value(entry["noise"]),
            None if entry["against"] is None else space.require(entry["against"]), float(entry["required"]),
        )
        for entry in data["trials"]
    )  # fmt: skip
    return Search(
        method=str(data["method"]), space=space, trials=trials,
        start=None if data["start"] is None else space.require(data["start"]), chosen=space.require(data["chosen"]),
        cost=_value(data["cost_s"]), evaluations=int(data["evaluations"]), compilations=int(data["compilations"]),
        threshold=float(data["threshold"]), bound=data["bound"], guarantee=str(data["guarantee"]),
        reason=str(data["reason"]), statistic=str(data["statistic"]), complete=bool(data["complete"]),
        subject=str(data["subject"]), seed=data["seed"],
        before=None if data["before"] is None else from_json(data["before"]),
    )  # fmt: skip


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "not measured" if math.isnan(value) else "infinite"


def _value(written: float | str) -> float:
    return {"infinite": math.inf, "not measured": math.nan}[written] if isinstance(written, str) else float(written)
