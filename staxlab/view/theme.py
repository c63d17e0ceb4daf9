"""The colours of the renderings, as data: one table, two themes, and the arithmetic that judges them.

Every colour is a role ("muted", "keyword", "linked"), never a place where it is used. A role has a value for light and
for dark surroundings; which applies is decided by the surroundings themselves: JupyterLab and nbconvert say
``data-jp-theme-light`` on the body, VS Code ``data-vscode-theme-kind``, and a page of ours follows the reader's system
unless its own switch says otherwise. Background and text come from the host's variables where it defines them.

A difference in colour is never the only sign of anything, but what is coloured must still be readable:
:func:`contrast` is the ratio of WCAG 2.2 (1.4.3), and the tests hold every text role to 4.5 against every background.
"""

from __future__ import annotations

# role: (light, dark)
COLOURS: dict[str, tuple[str, str]] = {
    "background": ("#ffffff", "#14171c"),
    "raised": ("#f6f7f9", "#1d2128"),
    "text": ("#1d2329", "#e4e7eb"),
    "muted": ("#59636e", "#9ca6b2"),
    "rule": ("#d5dae0", "#363d47"),
    "strong-rule": ("#7b858f", "#77828f"),
    "accent": ("#0b57b0", "#7cb8ff"),
    "linked": ("#fff3c9", "#463a12"),
    "linked-mark": ("#8a5300", "#f2c14e"),
    "added": ("#e2f5e7", "#14321f"),
    "added-mark": ("#0f6a2e", "#6fd18c"),
    "removed": ("#fdebea", "#421f20"),
    "removed-mark": ("#a8201a", "#ff9d96"),
    "warning": ("#8a4600", "#ffb45e"),
    # code
    "keyword": ("#8a1f7c", "#e5a0dc"),
    "type": ("#0f5c82", "#7fc8ea"),
    "name": ("#1d2329", "#e4e7eb"),
    "function": ("#0b57b0", "#7cb8ff"),
    "string": ("#206040", "#8fd3a8"),
    "number": ("#8f3b00", "#f0a878"),
    "comment": ("#5d6670", "#a6b0bb"),
    "directive": ("#665200", "#d6c06a"),
    # nodes of a drawn graph, by kind
    "input": ("#e4f0fb", "#17314a"),
    "call": ("#ffffff", "#1d2128"),
    "constant": ("#efeaf9", "#2e2644"),
    "output": ("#e6f4e8", "#1a3623"),
    # pointwise regions, in order
    "region-0": ("#fbe9d3", "#47310f"),
    "region-1": ("#dcecfb", "#16324c"),
    "region-2": ("#e3f3dc", "#1c3a1a"),
    "region-3": ("#f1e2f6", "#3b2345"),
    "region-4": ("#dff3f1", "#123a39"),
    "region-5": ("#f6e3e3", "#46201f"),
    # bars
    "read": ("#2f6fb5", "#6ea8e6"),
    "write": ("#b3541e", "#e39463"),
}

TEXT_ROLES = (
    "text", "muted", "accent", "warning", "keyword", "type", "name", "function", "string", "number", "comment",
    "directive", "linked-mark", "added-mark", "removed-mark",
)  # fmt: skip
BACKGROUND_ROLES = ("background", "raised")

# Where the host defines a colour for the same role, its own is used: JupyterLab first, then VS Code.
HOST_VARIABLES = {
    "background": ("--jp-layout-color1", "--vscode-editor-background"),
    "text": ("--jp-content-font-color1", "--vscode-editor-foreground"),
}

_LIGHT_HOSTS = (
    '[data-jp-theme-light="true"] .staxlab',
    '[data-vscode-theme-kind="vscode-light"] .staxlab',
    '[data-sx-theme="light"] .staxlab',
)
_DARK_HOSTS = (
    '[data-jp-theme-light="false"] .staxlab',
    '[data-vscode-theme-kind="vscode-dark"] .staxlab',
    '[data-vscode-theme-kind="vscode-high-contrast"] .staxlab',
    '[data-sx-theme="dark"] .staxlab',
)


def stylesheet() -> str:
    """The CSS that gives ``--sx-ROLE`` its value in every kind of surroundings."""
    light, dark = _declarations(0), _declarations(1)
    host = "".join(f"  --sx-{role}: {_host_value(role, names)};\n" for role, names in HOST_VARIABLES.items())
    return (
        f".staxlab {{\n  color-scheme: light;\n{light}}}\n"
        f"@media (prefers-color-scheme: dark) {{\n.staxlab {{\n  color-scheme: dark;\n{dark}}}\n}}\n"
        f"{', '.join(_LIGHT_HOSTS)} {{\n  color-scheme: light;\n{light}}}\n"
        f"{', '.join(_DARK_HOSTS)} {{\n  color-scheme: dark;\n{dark}}}\n"
        f".staxlab {{\n{host}}}\n"
    )


def _declarations(theme: int) -> str:
    """The literal colours of a theme. Roles a host may override are called ``--sx-own-ROLE`` here."""
    lines = []
    for role, values in COLOURS.items():
        own = "own-" if role in HOST_VARIABLES else ""
        lines.append(f"  --sx-{own}{role}: {values[theme]};\n")
    return "".join(lines)


def _host_value(role: str, names: tuple[str, ...]) -> str:
    value = f"var(--sx-own-{role})"
    for name in reversed(names):
        value = f"var({name}, {value})"
    return value


def relative_luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` in [0, 1], as WCAG 2.2 defines it."""
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, from 1 (equal) to 21 (black on white)."""
    lighter, darker = sorted((relative_luminance(one), relative_luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)
