"""Many cases in one figure per peer: the geometric mean of speedups, its interval, and what falls short.

Ratios multiply, so they are averaged by the geometric mean: ``exp(mean(log ratio))``, which does not depend on who is
divided by whom. A case's ratio is the median of the ratios of readings of the same round. The interval of the mean is a
bootstrap (Efron 1979): readings are drawn anew, with replacement, within each case, and the 2.5% and 97.5% quantiles of
the mean taken. It speaks of the noise of these readings on these cases, not of other cases.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from staxlab.measure.tables import Table
from staxlab.measure.timing import median, median_interval

RESAMPLES = 2000


def geometric_mean(values: Sequence[float]) -> float:
    """``(v1 * ... * vn) ** (1/n)``; NaN without values. ValueError unless all are positive."""
    if any(not v > 0 for v in values):
        raise ValueError("a geometric mean needs positive values")
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else math.nan


def bootstrap(groups: Sequence[Sequence[float]], seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The 95% bootstrap interval of the geometric mean of the groups' medians. O(resamples * readings)."""
    generator = random.Random(seed)
    means = sorted(
        geometric_mean([median(generator.choices(group, k=len(group))) for group in groups]) for _ in range(resamples)
    )
    return means[int(0.025 * resamples)], means[math.ceil(0.975 * resamples) - 1]


def ratios(case: Mapping[str, Any], slower: str, faster: str) -> list[float]:
    """All ratios of readings taken side by side, of every round; of a run with a process per peer, one per round."""
    sides = {p["peer"]: p["rounds"] for p in case["peers"]}
    if slower not in sides or faster not in sides:
        return []
    found: list[float] = []
    for a, b in zip(sides[slower], sides[faster], strict=False):
        found += [x / y for x, y in zip(a["readings_s"], b["readings_s"], strict=False) if y > 0]
    return found


def summarize(cases: Sequence[Mapping[str, Any]], subject: str = "staxlab") -> dict[str, Any]:
    """The summary of a run's ``cases`` (as in its JSON): per peer the geometric mean of ``time of the peer / time of
    subject`` over the cases both ran, with its interval, and the worst case; how near single-pass cases come to the
    roof, and where subject failed."""
    against: dict[str, Any] = {}
    peers = list(dict.fromkeys(p["peer"] for case in cases for p in case["peers"] if p["peer"] != subject))
    for peer in peers:
        groups = {case["case"]: found for case in cases if (found := ratios(case, peer, subject))}
        if not groups:
            continue
        medians = {name: median(group) for name, group in groups.items()}
        intervals = {name: median_interval(group) for name, group in groups.items()}
        low, high = bootstrap(list(groups.values()))
        worst = min(medians, key=medians.get)
        against[peer] = {
            "geometric_mean": geometric_mean(list(medians.values())),
            "interval": {"low": low, "high": high, "coverage": 0.95, "method": "bootstrap over readings"},
            "cases": {name: {"median": medians[name], **_ends(intervals[name])} for name in groups},
            "worst": worst,
        }
    roof = {
        case["case"]: case["roof"]["share"]
        for case in cases
        if case.get("roof") and case["roof"]["single_pass"] and case["roof"]["share"] is not None
    }
    failed = {
        case["case"]: p["problem"] for case in cases for p in case["peers"] if p["peer"] == subject and p.get("problem")
    }
    return {"subject": subject, "speedup_over": against, "share_of_roof_single_pass": roof, "failed": failed}


def _ends(interval: Any) -> dict[str, float]:
    return {"low": interval.low, "high": interval.high}


def shortfalls(summary: Mapping[str, Any], preallocated: bool = False) -> list[str]:
    """Which of the project's aims the run misses, in words.

    They are: every case at 0.95 of torch.compile's speed, none slower than eager beyond the interval of its ratio,
    geometric means of 2.5 (torch.compile) and 2 (XLA), 80% of the roof in a single pass; with results preallocated, a
    geometric mean of 1.15 over torch.compile.
    """
    found = [f"{name}: {problem}" for name, problem in summary["failed"].items()]
    over = summary["speedup_over"]
    if not preallocated:
        for peer, least, judged in (("torch_compile", 0.95, "median"), ("eager", 1.0, "high")):
            for name, ratio in over.get(peer, {"cases": {}})["cases"].items():
                if ratio[judged] < least:
                    found.append(f"{name}: {ratio['median']:.3g} times {peer}'s speed, wanted {least:g}")
        aims = {"torch_compile": 2.5, "xla": 2.0}
        for name, share in summary["share_of_roof_single_pass"].items():
            if share["median"] < 0.8:
                found.append(f"{name}: {share['median']:.0%} of the roof, wanted 80%")
    else:
        aims = {"torch_compile": 1.15}
    for peer, least in aims.items():
        if peer in over and over[peer]["geometric_mean"] < least:
            found.append(f"geometric mean over {peer}: {over[peer]['geometric_mean']:.3g}, wanted {least:g}")
    return found


def table(summary: Mapping[str, Any], preallocated: bool = False) -> Table:
    """A row per peer."""
    rows = []
    for peer, entry in summary["speedup_over"].items():
        interval = entry["interval"]
        rows.append(
            (
                peer,
                f"{entry['geometric_mean']:.3g}",
                f"{interval['low']:.3g} .. {interval['high']:.3g}",
                f"{len(entry['cases'])}",
                f"{entry['worst']}, {entry['cases'][entry['worst']]['median']:.3g}",
            )
        )
    missed = shortfalls(summary, preallocated)
    notes = ["geometric mean over cases; interval: bootstrap over readings, 95%"]
    notes += [f"below its aim: {text}" for text in missed] or ["no case is below its aim"]
    where = "results preallocated" if preallocated else "results new or pooled"
    columns = ("over", "geometric mean", "interval", "cases", "lowest")
    return Table.build(f"Speedup of {summary['subject']}, {where}", columns, rows, notes)
