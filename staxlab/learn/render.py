"""Feedback and rubrics as HTML: the same words as in the terminal, with a symbol and a rule beside each verdict.

Built from the markup and colours that all views share (:mod:`staxlab.view.markup`, :mod:`staxlab.view.theme`): text is
escaped on entry, both themes are covered, nothing comes from a network, and with all styles stripped the page still
reads from top to bottom.
"""

from __future__ import annotations

from ..view.markup import Html, element, join
from ..view.theme import stylesheet
from .feedback import Feedback, Item, Status, amount, points_text
from .rubrics import Rubric

# The colour role of a verdict's symbol; the symbol and the word say the same without colour.
ROLES = {
    Status.RIGHT: "added",
    Status.NEARLY: "linked",
    Status.WRONG: "removed",
    Status.MALFORMED: "removed",
    Status.MISSING: "raised",
    Status.UNCHECKED: "raised",
    Status.PENDING: "raised",
}

STYLE = """
.staxlab.sx-learn { color: var(--sx-text); background: var(--sx-background); border: 1px solid var(--sx-rule);
  border-radius: 6px; padding: 10px 14px; max-width: 62em; line-height: 1.45; }
.staxlab.sx-learn h3, .staxlab.sx-learn h4 { margin: 4px 0 6px; font-weight: 600; color: var(--sx-text); }
.staxlab.sx-learn h3 { font-size: 1.1em; } .staxlab.sx-learn h4 { font-size: 1em; margin-top: 14px; }
.staxlab.sx-learn .sx-verdict { border-left: 4px solid var(--sx-strong-rule); padding: 4px 10px; margin: 6px 0; }
.staxlab.sx-learn .sx-right { border-left-color: var(--sx-added-mark); }
.staxlab.sx-learn .sx-nearly { border-left-color: var(--sx-linked-mark); border-left-style: double; }
.staxlab.sx-learn .sx-wrong, .staxlab.sx-learn .sx-malformed { border-left-color: var(--sx-removed-mark);
  border-left-style: dashed; }
.staxlab.sx-learn .sx-mark { display: inline-block; min-width: 1.5em; text-align: center; border-radius: 3px;
  color: var(--sx-text); background: var(--sx-raised); font-weight: 700; margin-right: 6px; }
.staxlab.sx-learn .sx-mark-added { color: var(--sx-added-mark); background: var(--sx-added); }
.staxlab.sx-learn .sx-mark-linked { color: var(--sx-linked-mark); background: var(--sx-linked); }
.staxlab.sx-learn .sx-mark-removed { color: var(--sx-removed-mark); background: var(--sx-removed); }
.staxlab.sx-learn .sx-muted { color: var(--sx-muted); background: transparent; }
.staxlab.sx-learn p { margin: 4px 0; color: var(--sx-text); }
.staxlab.sx-learn table { border-collapse: collapse; margin: 4px 0; color: var(--sx-text);
  background: var(--sx-background); }
.staxlab.sx-learn caption { text-align: left; color: var(--sx-muted); font-size: 0.9em; padding: 2px 0; }
.staxlab.sx-learn th, .staxlab.sx-learn td { text-align: left; vertical-align: top; padding: 2px 12px 2px 0;
  border: 0; background: transparent; color: var(--sx-text); white-space: pre-wrap; }
.staxlab.sx-learn thead tr:nth-child(n), .staxlab.sx-learn tbody tr:nth-child(n) { background: transparent; }
.staxlab.sx-learn th { font-weight: 500; color: var(--sx-muted); white-space: nowrap; }
.staxlab.sx-learn .sx-verdict td { font-family: var(--jp-code-font-family, monospace); font-size: 0.95em; }
"""


def feedback_html(feedback: Feedback) -> str:
    """A self-contained fragment: one section per part, one block per field."""
    head = f"{feedback.title}: {amount(feedback.earned)} of {points_text(feedback.maximum)}"
    if feedback.pending:
        head += f", {amount(feedback.pending)} more from your instructor"
    body = [element("h3", head)]
    if feedback.variant:
        values = ", ".join(f"{name} = {value}" for name, value in feedback.variant)
        body.append(element("p", f"with {values}", class_="sx-muted"))
    for part in feedback.parts:
        score = f"{amount(part.earned)}/{amount(part.maximum)}"
        body.append(element("h4", f"Part {part.name}. {part.title} [{score}]"))
        body += [_item(item) for item in part.items]
    body += [element("p", element("strong", "Note: "), note) for note in feedback.notes]
    return _root(join(body), f"Feedback on {feedback.exercise}")


def _item(item: Item) -> Html:
    verdict, status = item.verdict, item.verdict.status
    score = f"{amount(item.earned)}/{amount(item.points)}" if item.automatic else points_text(item.points)
    head = element(
        "p",
        element("span", status.symbol, class_=f"sx-mark sx-mark-{ROLES[status]}", aria_hidden="true"),
        element("strong", element("code", item.field)),
        element("span", f" {status.word}, {score}", class_="sx-muted"),
    )
    facts = None
    if verdict.facts:
        rows = [element("tr", element("th", label, scope="row"), element("td", text)) for label, text in verdict.facts]
        facts = element("table", element("caption", "What was found"), element("tbody", rows))
    return element(
        "div", head, element("p", verdict.message), facts, class_=f"sx-verdict sx-{status.name.lower()}", role="group"
    )


def rubric_html(rubric: Rubric) -> str:
    """The rubric as a table: a row per level of a criterion."""
    rows = []
    for criterion in rubric.criteria:
        for position, (earns, text) in enumerate(criterion.levels()):
            name = element("th", f"{criterion.name} ({criterion.points})" if position == 0 else "", scope="row")
            rows.append(element("tr", name, element("td", earns), element("td", text)))
    headings = element("tr", [element("th", name, scope="col") for name in ("criterion", "points", "what earns them")])
    caption = element("caption", f"{rubric.title or 'Rubric'}: {rubric.points} points")
    return _root(element("table", caption, element("thead", headings), element("tbody", rows)), "Rubric")


def _root(content: Html, label: str) -> str:
    style = element("style", Html(stylesheet() + STYLE))
    return str(element("section", style, content, class_="staxlab sx-learn", aria_label=label))
