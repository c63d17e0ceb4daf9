"""What if a value were written to memory, or were not (Section 6.6)? Lowering is done again, and the outcomes compared.

Whether a value is realized is decided by thresholds that stand in for a cost model. This module asks what would have
happened otherwise: the operator graph is lowered anew with some decisions overridden, scheduled, and turned into
kernels, all by the compiler's own stages. Nothing is estimated about the *program* that comes out; only the time is
predicted, with the two rates of :class:`staxlab.loops.realize.Rates`.

By Theorem 6.1 all outcomes compute the same values, bit for bit, except that a half-precision value is rounded where it
is stored; :meth:`Outcome.call` runs one, so this can be checked.

>>> import torch, staxlab
>>> f = lambda x: (x.exp().sum(-1), x.exp().amax(-1))                                                 # Example 7.2
>>> compilation = staxlab.explain(f, torch.randn(64, 128))
>>> what_if(compilation, {"exp": "inline"}).after.buffers
2
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..codegen.kernel import KernelSet
from ..codegen.wrapper import generate_wrapper
from ..errors import OptionError
from ..loops.ir import LoopProgram
from ..loops.lowering import lower
from ..loops.realize import INLINED, REALIZED, Rates, model_choice, rates
from ..options import Decision, DeviceSpec, Options, nearest
from ..schedule.dependencies import schedule
from ..schedule.records import Schedule
from ..specialize.report import counted
from .bytes import Traffic, compiled_traffic
from .tables import Table, Tabular, bytes_text, quantity_text, seconds_text

CHOICES = ("inline", "realize")
MOST_TOGETHER = 5  # values of which every combination is tried; of more, one is changed at a time
MOST_ALONE = 24
MOST_NAMED = 6  # values one reason names


@dataclass(frozen=True, eq=False)
class Outcome:
    """The region with a choice for each value that is not forced into memory: what each stage made of it.

    ``choices`` are pairs of a value and "inline" or "realize"; ``seconds`` is the predicted time of all kernels.
    """

    choices: tuple[tuple[str, str], ...]
    loops: LoopProgram
    schedule: Schedule
    kernels: KernelSet
    traffic: Traffic
    seconds: float
    options: Options
    device: DeviceSpec
    constants: tuple[torch.Tensor, ...] = field(default=(), repr=False)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self.kernels)

    @property
    def buffers(self) -> int:
        """Blocks of memory the program fills, its outputs among them."""
        return len(self.loops.buffers)

    def chosen(self, value: str) -> str | None:
        """What was chosen for a value; None for one that had no choice."""
        return dict(self.choices).get(value)

    @cached_property
    def _run(self) -> Any:
        from ..runtime.artifact import load
        from ..runtime.build import build
        from ..runtime.program import program_of
        from ..runtime.recipe import recipe_of

        launchers = build(self.kernels, self.options, self.device)
        wrapper = generate_wrapper(self.schedule, self.kernels, self.options)
        recipe = recipe_of(self.schedule, self.kernels)
        return load(wrapper, launchers, *program_of(recipe, self.kernels, launchers)).call

    def call(self, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Compile the kernels and run them on the region's flat inputs, which must be like the sample.

        OptionError where the target is not this machine.
        """
        if self.device.is_gpu and not torch.cuda.is_available():
            raise OptionError(f"these kernels are for {self.device.name}, which is not here", remedy="use target='cpu'")
        with torch.no_grad():
            return tuple(self._run([*inputs, *self.constants]))


@dataclass(frozen=True, repr=False)
class WhatIf(Tabular):
    """One question and its answer: the region as it was compiled, ``before``, and with ``asked`` overridden."""

    name: str
    asked: tuple[tuple[str, str], ...]
    before: Outcome
    after: Outcome
    rate: Rates

    def table(self) -> Table:
        def row(what: str, number: Any, text: Any) -> tuple[str, ...]:
            one, other = number(self.before), number(self.after)
            change = "as before" if one == other else f"{other / one:.3g} times" if one else "new"
            return (what, text(one), text(other), change)

        rows = [
            row("kernels", lambda o: len(o.kernels), str),
            row("buffers", lambda o: o.buffers, str),
            row("bytes read", lambda o: o.traffic.bytes_read, bytes_text),
            row("bytes written", lambda o: o.traffic.bytes_written, bytes_text),
            row("operations", lambda o: o.traffic.operations, lambda n: quantity_text(n, "op")),
            row("predicted time", lambda o: o.seconds, seconds_text),
        ]
        asked = ", ".join(f"{name} = {choice}" for name, choice in self.asked)
        notes = [
            f"kernels as compiled: {', '.join(self.before.kernel_names) or 'none'}",
            f"kernels if {asked}: {', '.join(self.after.kernel_names) or 'none'}",
            rates_text(self.rate),
        ]
        return Table.build(f"What if {asked}", ("", "as compiled", "what if", "change"), rows, notes)


@dataclass(frozen=True)
class RealizationTable:
    """Every value of a region that could be inlined or realized, the decision about it, and what each choice leads to.

    ``decisions`` are those of the compilation, one for each open value; ``required`` the ones about values that must be
    in memory. ``outcomes[0]`` is the region as it was compiled. ``together``: all combinations are among the outcomes;
    otherwise each of the others changes one decision.
    """

    name: str
    device: DeviceSpec
    rate: Rates
    decisions: tuple[Decision, ...]
    required: tuple[Decision, ...]
    outcomes: tuple[Outcome, ...]
    together: bool

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(decision.subject for decision in self.decisions)

    @property
    def best(self) -> Outcome:
        """The outcome with the least predicted time; as compiled, if none is better."""
        return min(self.outcomes, key=lambda outcome: outcome.seconds)

    @property
    def disagreements(self) -> tuple[Decision, ...]:
        """The decisions that the cost model would have taken otherwise."""
        return tuple(d for d in self.decisions if model_choice(d) not in (None, d.choice))

    def outcome(self, **choices: str) -> Outcome:
        """The outcome that differs from the compilation in these choices only. KeyError if it is not in the table."""
        wanted = dict(self.outcomes[0].choices) | choices
        for candidate in self.outcomes:
            if dict(candidate.choices) == wanted:
                return candidate
        raise KeyError(f"no outcome has {choices}")

    def decision_table(self) -> Table:
        """A row for each open value: the facts, the rule that fired, and both costs of the model."""
        columns = ("value", "k", "N", "c", "q", "b", "chosen", "because", "inlined", "realized", "the model")
        rows = []
        for decision in self.decisions:
            facts = dict(decision.inputs)
            said = model_choice(decision)
            rows.append(
                (
                    decision.subject, facts["users"], f"{facts['N']:,}", facts["c"], f"{facts['q']:g}", facts["b"],
                    decision.choice, decision.reason, seconds_text(facts[INLINED]), seconds_text(facts[REALIZED]),
                    "agrees" if said == decision.choice else f"would {said}",
                )
            )  # fmt: skip
        notes = [
            "k users; N elements, each of c operations, q bytes read and b stored; inlined k N (c/P + q/B), realized "
            "N (c/P + q/B) + (1 + k) N b/B",
            rates_text(self.rate),
        ]
        notes += [self.required_text()] if self.required else []
        return Table.build(f"Realization in {self.name} for {self.device.name}", columns, rows, notes)

    def required_text(self) -> str:
        """What must be in memory, by reasons."""
        by_reason: dict[str, list[str]] = {}
        for decision in self.required:
            by_reason.setdefault(decision.reason, []).append(decision.subject)
        parts = []
        for reason, names in by_reason.items():
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            parts.append(f"{', '.join(names[:MOST_NAMED])}{more} ({reason})")
        return f"in memory in any case: {'; '.join(parts)}"

    def outcome_words(self, outcome: Outcome) -> str:
        """An outcome in a sentence."""
        chosen = ", ".join(f"{name} {choice}d" for name, choice in outcome.choices)
        first = self.outcomes[0]
        moved, operations = bytes_text(outcome.traffic.nbytes), quantity_text(outcome.traffic.operations, "op")
        kernels, buffers = counted(len(outcome.kernels), "kernel"), counted(outcome.buffers, "buffer")
        predicted = seconds_text(outcome.seconds)
        words = f"{chosen}: {kernels}, {buffers}, {moved} moved, {operations}, {predicted} predicted"
        return words + (" (as compiled)" if outcome is first else f" (as compiled: {seconds_text(first.seconds)})")

    def outcome_table(self) -> Table:
        """A row for each outcome: the choices, and what follows from them."""
        columns = (*self.values, "kernels", "buffers", "read", "written", "operations", "predicted")
        rows = []
        for place, outcome in enumerate(self.outcomes):
            traffic = outcome.traffic
            mark = " (as compiled)" if place == 0 else " (least)" if outcome is self.best else ""
            rows.append(
                (
                    *(outcome.chosen(value) for value in self.values), len(outcome.kernels), outcome.buffers,
                    bytes_text(traffic.bytes_read), bytes_text(traffic.bytes_written),
                    quantity_text(traffic.operations, "op"), seconds_text(outcome.seconds) + mark,
                )
            )  # fmt: skip
        caption = "All combinations" if self.together else "One decision changed at a time"
        return Table.build(caption, columns, rows, (), text_columns=len(self.values))

    def format(self) -> str:
        """Both tables as text."""
        if not self.decisions:
            nothing = f"Realization in {self.name}: no value has a choice"
            return "\n".join([nothing, *([f"note: {self.required_text()}"] if self.required else [])])
        return f"{self.decision_table().text()}\n\n{self.outcome_table().text()}"

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def rates_text(rate: Rates) -> str:
    """The two rates in a sentence."""
    throughput, bandwidth = quantity_text(rate.throughput, "op/s"), quantity_text(rate.bandwidth, "B/s")
    return f"P = {throughput}, B = {bandwidth} ({rate.source})"


def what_if(compilation: Any, forced: Mapping[str, str], *, rate: Rates | None = None) -> WhatIf:
    """The region of a ``Compilation``, relowered with ``forced``: names of operator nodes to "inline" or "realize".

    ``rate``: the rates of the prediction; by default those of the compilation's device. Raises OptionError for a name
    that is no value with a choice, for another choice, and for a compilation without an operator graph.
    """
    rate = rate or rates(compilation.device)
    open_values, required = _open(compilation)
    _check(forced, open_values, required)
    before = _outcome(compilation, {}, open_values, rate)
    after = _outcome(compilation, forced, open_values, rate)
    return WhatIf(compilation.name, tuple(forced.items()), before, after, rate)


def realization_table(
    compilation: Any, values: Sequence[str] | None = None, *, rate: Rates | None = None
) -> RealizationTable:
    """Decisions and outcomes for a ``Compilation``.

    ``values``: which are to be changed. By default those with several users, or, where there are none, the first few
    with one. Up to five are tried in every combination (2**5 lowerings), of more each by itself.
    Raises OptionError as :func:`what_if`.
    """
    rate = rate or rates(compilation.device)
    open_values, required = _open(compilation)
    if values is None:
        several = [name for name, decision in open_values.items() if dict(decision.inputs)["users"] > 1]
        values = several[:MOST_ALONE] or list(open_values)[:MOST_TOGETHER]
    _check(dict.fromkeys(values, "inline"), open_values, required)
    decisions = {name: open_values[name] for name in dict.fromkeys(values)}
    together = len(decisions) <= MOST_TOGETHER
    found = [_outcome(compilation, forced, decisions, rate) for forced in _questions(decisions, together)]
    return RealizationTable(
        compilation.name, compilation.device, rate, tuple(decisions.values()), tuple(required.values()), tuple(found),
        together,
    )  # fmt: skip


def _questions(decisions: Mapping[str, Decision], together: bool) -> Iterator[dict[str, str]]:
    """What to ask for, nothing first."""
    yield {}
    chosen = {name: decision.choice for name, decision in decisions.items()}
    if together:
        for choices in itertools.product(CHOICES, repeat=len(chosen)):
            forced = dict(zip(chosen, choices, strict=True))
            if forced != chosen:
                yield forced
    else:
        for name, choice in chosen.items():
            yield {name: CHOICES[1 - CHOICES.index(choice)]}


def _open(compilation: Any) -> tuple[dict[str, Decision], dict[str, Decision]]:
    """The decisions about values that could go either way, and about those that could not."""
    if compilation.operators is None or compilation.loops is None:
        why = compilation.fallback_reason or f"backend {compilation.options.backend!r} ends before the loops"
        raise OptionError(
            f"{compilation.name} has nothing to realize: {why}", remedy=compilation.fallback_remedy or "backend='stax'"
        )
    program = lower(compilation.operators, compilation.device, compilation.options, forced={})
    decisions = [d for d in program.decisions if d.topic == "realize"]
    required = {d.subject: d for d in decisions if len(d.candidates) == 1}
    return {d.subject: d for d in decisions if len(d.candidates) > 1 and d.subject not in required}, required


def _check(forced: Mapping[str, str], open_values: Mapping[str, Any], required: Mapping[str, Decision]) -> None:
    for name, choice in forced.items():
        if choice not in CHOICES:
            raise OptionError(f"{name} cannot be {choice!r}{nearest(str(choice), CHOICES)}")
        if name in required:
            raise OptionError(
                f"{name} must be in memory: {required[name].reason}",
                remedy=f"choose among {', '.join(open_values) or 'nothing: no value has a choice'}",
            )
        if name not in open_values:
            raise OptionError(f"no value {name!r} can be inlined or realized{nearest(name, open_values)}")


def _outcome(compilation: Any, forced: Mapping[str, str], open_values: Mapping[str, Decision], rate: Rates) -> Outcome:
    """The stages from lowering to kernels, with decisions overridden."""
    options, device = compilation.options, compilation.device
    program = lower(compilation.operators, device, options, forced=forced)
    scheduled = schedule(program, device, options)
    if device.is_gpu:
        from ..codegen.triton import generate
    else:
        from ..codegen.cpp import generate
    kernels = generate(scheduled, options, device)
    traffic = compiled_traffic(scheduled, kernels)
    choices = tuple((name, forced.get(name, decision.choice)) for name, decision in open_values.items())
    module = compilation.operators.module
    held = {node.name: module.constants[node.target] for node in module.graph if node.op == "get_attr"}
    placeholders = {node.name for node in module.graph.placeholders}
    constants = tuple(held[buffer.name] for buffer in program.inputs if buffer.name not in placeholders)
    seconds = rate.seconds(traffic.operations, traffic.nbytes)
    return Outcome(choices, program, scheduled, kernels, traffic, seconds, options, device, constants)


__all__ = ["Outcome", "RealizationTable", "WhatIf", "rates_text", "realization_table", "what_if"]
