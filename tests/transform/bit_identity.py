"""Random programs against eager execution, bit for bit: the comparison that tests and the nightly run share."""

from __future__ import annotations

import collections
import random
import warnings

import torch

import staxlab
from tests.transform import programs
from tests.transform.observation import difference, observe

BACKENDS = ("eager", "aot_eager")
CALLS = 2  # the one that compiles, and one that runs what was compiled


def rules_applied(compiled) -> set[str]:
    """Names of the front end's rules and of the operators taken apart, over all versions."""
    names: set[str] = set()
    for version in compiled.versions:
        compilation = version.compilation
        names |= {applied.rule for run in compilation.transforms.changes for applied in run.applied}
        if compilation.operators is not None and compilation.fallback_reason is None:
            names |= {f"decomposed {entry.operator}" for entry in compilation.operators.decomposed}
    return names


def check(program: programs.Program, backend: str, counts: collections.Counter | None = None) -> str | None:
    """What ``backend`` does differently from eager execution, or None. ``counts`` tallies what happened.

    Where ``x + 0 -> x`` was applied the sign of zeros is not compared: the one liberty the front end's rules take.
    """
    counts = collections.Counter() if counts is None else counts
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = staxlab.compile(program.function, backend=backend)
        for call in range(CALLS):
            eager_inputs, own_inputs = program.arguments(call), program.arguments(call)
            try:
                expected = observe(program.function, eager_inputs, seed=call)
            except Exception:
                counts["eager raises"] += 1
                try:
                    observe(compiled, own_inputs, seed=call)
                except Exception:
                    continue
                return f"call {call}: no exception where eager raises one"
            try:
                actual = observe(compiled, own_inputs, seed=call)
            except staxlab.CaptureError as error:
                counts["refused"] += 1
                return f"call {call}: refused: {error}"
            except Exception as error:
                return f"call {call}: raised {error!r:.600}"
            found = difference(actual, expected)
            if found is not None:
                if "add zero" in rules_applied(compiled):
                    expected = observe(program.function, program.arguments(call), seed=call, signed_zero=False)
                    again = staxlab.compile(program.function, backend=backend)
                    actual = observe(again, program.arguments(call), seed=call, signed_zero=False)
                    found = difference(actual, expected)
                    counts["zero's sign"] += int(found is None)
                if found is not None and any(name.startswith("decomposed") for name in rules_applied(compiled)):
                    # Values may round differently; the operator samples hold each rule to a bound.
                    kept = ("structure", "geometry", "identity", "storage", "drawn")
                    found = difference(actual, {key: expected[key] for key in kept})
                    counts["taken apart and rounded elsewhere"] += int(found is None)
                if found is not None:
                    return f"call {call}: {found}"
        for version in compiled.versions:
            reason = version.compilation.fallback_reason
            counts["as captured" if reason else "as transformed"] += 1
        counts.update(rules_applied(compiled))
    return None


def numbers(generator: random.Random) -> tuple:
    """The numbers of one program, drawn without hypothesis: many at a time cost less that way."""
    count = len(programs.LINES)
    steps = [
        (generator.randrange(count), _recent(generator), _recent(generator), generator.randrange(3))
        for _ in range(generator.randint(4, 45))  # lines that do not fit are left out
    ]
    return steps[:60], [_recent(generator) for _ in range(generator.randint(1, 4))]


def _recent(generator: random.Random) -> int:
    return min(int(generator.expovariate(0.2)), 36)


def shortened(program: programs.Program, backend: str, found: str) -> tuple[programs.Program, str]:
    """A failing program with as many lines left out as can be; and what still goes wrong."""
    changed = True
    while changed:
        changed = False
        for place in range(len(program.lines) - 1, -1, -1):
            smaller = program.without(place)
            if smaller is None:
                continue
            result = check(smaller, backend)
            if result is not None:
                program, found, changed = smaller, result, True
    return program, found


def campaign(count: int, seed: int, backends=BACKENDS, report=None) -> tuple[collections.Counter, list[str]]:
    """Check ``count`` programs; returns what happened and each failure as text, shortened, with its source."""
    generator = random.Random(seed)
    counts: collections.Counter = collections.Counter()
    failures: list[str] = []
    while counts["programs"] < count:
        program = programs.write(numbers(generator), seed=counts["programs"] % 2)
        if program is None:
            counts["empty"] += 1
            continue
        counts["programs"] += 1
        counts["nodes"] += len(program.lines)
        for backend in backends:
            found = check(program, backend, counts)
            if found is not None:
                small, why = shortened(program, backend, found)
                failures.append(f"program {counts['programs']} of seed {seed}, {backend}: {why}\n{small.source}")
                if report is not None:
                    report(failures[-1])
                break
    return counts, failures
