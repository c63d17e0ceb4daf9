"""Tables and plots of measurements: ratios with their intervals, speedup against the byte model (Section 13.2)."""

from __future__ import annotations

import html

from ..measure.tables import Table

# Foreground and background both come from the host's theme, with literal values where it has none.
TABLE_STYLE = """
.stax-measure {
  color: var(--jp-content-font-color1, var(--vscode-editor-foreground, #1b1b1b));
  background: var(--jp-layout-color0, var(--vscode-editor-background, #ffffff));
  padding: 0.4em; overflow-x: auto;
}
.stax-measure table { border-collapse: collapse; color: inherit; }
.stax-measure caption { text-align: left; font-weight: 600; padding-bottom: 0.3em; }
.stax-measure th, .stax-measure td {
  padding: 0.15em 0.8em; text-align: left; border-bottom: 1px solid #8888;
  color: inherit; background: inherit;
}
.stax-measure .num { text-align: right; font-variant-numeric: tabular-nums; }
.stax-measure p { margin: 0.2em 0; }
"""


def table_html(table: Table) -> str:
    """A self-contained HTML table with caption, scoped style, and right-aligned numeric columns."""

    def cells(tag: str, row: tuple[str, ...], extra: str = "") -> str:
        parts = []
        for i, cell in enumerate(row):
            number = ' class="num"' if i in table.numeric else ""
            parts.append(f"<{tag}{extra}{number}>{html.escape(cell)}</{tag}>")
        return "<tr>" + "".join(parts) + "</tr>"

    head = cells("th", table.columns, ' scope="col"')
    body = "\n".join(cells("td", row) for row in table.rows)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    caption = html.escape(table.caption)
    return "\n".join(
        (
            f'<div class="stax-measure"><style>{TABLE_STYLE}</style>',
            f"<table><caption>{caption}</caption>",
            f"<thead>{head}</thead>",
            f"<tbody>\n{body}\n</tbody></table>",
            f"{notes}</div>",
        )
    )
