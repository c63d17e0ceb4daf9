"""What a kernel does, without the names it was given (Section 11.1).

The layers of a model are alike: their kernels differ in the names of the region's buffers and in comments, and in
nothing that a machine executes. Compiled is therefore the text without them, once for all kernels that do the same. In
a decoder of sixteen layers that is one compilation in ten.
"""

from __future__ import annotations

import dataclasses
import re

from ..provenance import Line
from .kernel import RESIDENT, Kernel

#: The function's name in what is compiled (C++), and in what is compared (Triton).
ENTRY = "kernel"
_NAMES = {"cpp": ENTRY, "triton": "anonymous_kernel"}  # the word alone stands in messages of Triton kernels

_ROW = re.compile(r"\bmemory_(row_\w+)\[")  # where a C++ kernel's own memory for a row is declared
_COMMENT = {"cpp": re.compile(r"\s*//[^\"]*$"), "triton": re.compile(r"\s*#[^\"]*$")}


def anonymous(kernel: Kernel) -> Kernel:
    """The kernel without the names that its region gave to it, to its arguments and to rows that its members pass on,
    and without comments."""
    renamed = {argument.name: f"argument_{place}" for place, argument in enumerate(kernel.arguments)}
    name = _NAMES[kernel.language]
    renamed |= {kernel.name: name, kernel.name + RESIDENT: name + RESIDENT}
    bare = [_COMMENT[kernel.language].sub("", line.text) for line in kernel.lines]
    rows = dict.fromkeys(row for text in bare for row in _ROW.findall(text))
    for place, row in enumerate(rows):
        renamed |= {row: f"passed_on_{place}", f"memory_{row}": f"memory_passed_on_{place}"}
    if any(re.search(rf"\b{new}\b", text) for new in renamed.values() for text in bare):
        return kernel  # a name of ours is taken already
    names = re.compile(r"\b(" + "|".join(map(re.escape, renamed)) + r")\b")
    texts = (names.sub(lambda match: renamed[match[1]], text) for text in bare)
    return dataclasses.replace(kernel, name=name, lines=tuple(Line(text) for text in texts if text.strip()))
