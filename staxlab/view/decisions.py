"""Decisions: "why did it do that?" as a table (records of ``staxlab.options.Decision``).

Every heuristic of the compiler returns its choice together with the alternatives, a reason and the quantities it
looked at. Here they are rows; ``stages`` of a compilation show their own above or below what they decided about.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..loops.realize import INLINED, REALIZED, model_choice
from ..measure.tables import seconds_text
from .document import Pane
from .markup import Html, element, join, table


def decisions_table(decisions: Iterable[Any], caption: str = "Decisions") -> Html:
    """A row per decision: what about, what was chosen, instead of what, why, and on which facts."""
    rows = []
    for decision in decisions:
        others = [_spoken(c) for c in decision.candidates if c != decision.choice]
        said = model_choice(decision)
        shown = [(name, value) for name, value in decision.inputs if not said or name not in (INLINED, REALIZED)]
        facts = join([element("code", f"{name} = {value}") for name, value in shown], ", ")
        what = (
            [decision.topic.replace("-", " "), " ", element("code", decision.subject)]
            if decision.subject
            else decision.topic
        )
        choice = element("strong", _spoken(decision.choice))
        because = [decision.reason, element("br"), model_words(decision, said)] if said else [decision.reason]
        rows.append([element("span", what), choice, ", ".join(others) or "–", element("span", because), facts or "–"])
    if not rows:
        return element("p", "No decision was needed.", class_="sx-note")
    return table(caption, ["question", "choice", "instead of", "because", "given"], rows)


def model_words(decision: Any, said: str) -> Html:
    """What the cost model says of a realization: both costs, and whether it would have decided alike."""
    facts = dict(decision.inputs)
    verdict = "agrees" if said == decision.choice else f"would {said}"
    words = f"model: {seconds_text(facts[INLINED])} inlined, {seconds_text(facts[REALIZED])} realized: {verdict}"
    return element("span", words, class_="sx-muted")


def _spoken(choice: Any) -> str:
    """A choice as a table shows it; the alternatives are spelled the same way, and as in Python."""
    return "none" if choice is None else str(choice)


def panes(record: Any) -> list[Pane]:
    """One decision, or several."""
    decisions = list(record) if isinstance(record, (tuple, list)) else [record]
    plain = "\n".join(map(str, decisions))
    return [Pane("decisions", "Decisions", decisions_table(decisions), f"{len(decisions)} taken", plain)]
