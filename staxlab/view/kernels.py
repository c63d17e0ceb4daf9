"""Kernels (Sections 8 and 9), drawn: the generated source, coloured, each line linked to what it computes.

Below the source stand the facts the generator worked with: the arguments in calling order, the launch parameters, the
modelled traffic, and the decisions with their reasons.
"""

from __future__ import annotations

from typing import Any

from ..codegen.kernel import Kernel
from ..provenance import Line
from .decisions import decisions_table
from .document import Pane
from .listing import listing
from .markup import Html, element, join, table
from .schedule import byte_text

LAUNCH_NAMES = {"work": "estimated work, in vector operations", "parallel": "loops shared among threads"}
LANGUAGES = {"cpp": "C++", "triton": "Triton", "extern": "a call into PyTorch"}


def kernel_markup(kernel: Any, *, single: bool) -> Html:
    """Source, arguments, launch and decisions of one kernel."""
    facts = [
        language_text(kernel),
        f"reads {byte_text(kernel.bytes_read)}",
        f"writes {byte_text(kernel.bytes_written)}",
    ]
    if kernel.language != "extern":  # what PyTorch's routine computes is counted by the byte model, from the operator
        facts.append(f"{kernel.operations:,} operations")
    if kernel.is_fallback:
        facts.append("fallback: no native lowering")
    caption = [element("strong", kernel.name), " ", element("span", " · ".join(facts), class_="sx-muted")]
    language = {"cpp": "cpp", "triton": "triton"}.get(kernel.written_in or kernel.language, "text")
    parts = [listing(kernel.lines, language, name=kernel.name, caption=caption)]
    for part in kernel.embedded:  # as text: its origins are nodes of a graph of its own
        lines = part.format().splitlines()
        shown = listing([Line(text) for text in lines[1:]], "ir", name=lines[0])
        parts.append(element("details", [element("summary", f"embedded: {lines[0]}"), shown], class_="sx-more"))
    details = []
    if kernel.arguments:
        rows = [[a.name, a.buffer, a.role, str(a.dtype).removeprefix("torch.")] for a in kernel.arguments]
        details.append(table("Arguments in calling order", ["argument", "buffer", "role", "dtype"], rows))
    launch = [[LAUNCH_NAMES.get(key, key.replace("_", " ")), value_text(value)] for key, value in kernel.launch.items()]
    launch += [["compiler flags", " ".join(kernel.flags)]] if kernel.flags else []
    if launch:
        details.append(table("Launch", ["parameter", "value"], launch))
    if kernel.decisions:
        details.append(decisions_table(kernel.decisions, f"Why {kernel.name} looks like this"))
    if details:
        inner = [element("summary", "arguments, launch and decisions"), *details]
        parts.append(element("details", inner, class_="sx-more", open=single))
    return element("div", parts, class_="sx-kernel")


def language_text(kernel: Kernel) -> str:
    """What a kernel is written in, or that it is a call, and of what."""
    if kernel.written_in:
        return f"a call of kernels in {LANGUAGES.get(kernel.written_in, kernel.written_in)}"
    return LANGUAGES.get(kernel.language, kernel.language)


def value_text(value: Any) -> str:
    """A launch parameter in words: nested settings as ``name = value``, nothing as a dash."""
    if isinstance(value, dict):
        return ", ".join(f"{str(key).replace('_', ' ')} = {value_text(part)}" for key, part in value.items()) or "–"
    if isinstance(value, (tuple, list)):
        return " × ".join(map(value_text, value)) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Kernel):
        return value.name
    return f"{value:,}" if isinstance(value, int) else str(value)


def text(record: Any) -> str:
    """One kernel as a terminal shows it (several have a ``format`` of their own)."""
    if not hasattr(record, "lines"):
        return record.format()
    language = language_text(record) + (", fallback" if record.is_fallback else "")
    return (
        f"{record.name} ({language}): reads {record.bytes_read:,} B, writes {record.bytes_written:,} B\n{record.source}"
    )


def panes(record: Any) -> list[Pane]:
    """One kernel, or all of a region in execution order."""
    kernels = [record] if hasattr(record, "lines") else list(record)
    body = join(kernel_markup(kernel, single=len(kernels) == 1) for kernel in kernels)
    plain = "\n".join(kernel.source for kernel in kernels)
    moved = sum(kernel.bytes_read + kernel.bytes_written for kernel in kernels)
    fallbacks = sum(kernel.is_fallback for kernel in kernels)
    summary = f"{len(kernels)} kernel{'' if len(kernels) == 1 else 's'}, {byte_text(moved)} moved"
    if fallbacks:
        summary += f", {fallbacks} through the fallback"
    if not kernels:
        body = element("p", "Nothing is computed, so there is no kernel.", class_="sx-note")
    return [Pane("kernels", "Kernel" if len(kernels) == 1 else "Kernels", body, summary, plain)]
