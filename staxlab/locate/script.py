"""A failing graph as a program of its own, which imports PyTorch and this package and nothing else of the user's.

The function is the graph's Python source. Constants have become arguments; what has neither a literal nor an importable
name makes the graph unspeakable, and then there is no program. Inputs are drawn from a seed where that still shows the
error, and otherwise stand in the text, as numbers or, if there are many, as bytes in base 64. Names and lines of the
user's program occur in comments only, in ASCII.
"""

from __future__ import annotations

import base64
import importlib
import os
import re
import textwrap
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..capture.module import GraphModule
from ..errors import OptionError
from ..files import write_whole

#: Inputs of more elements than this are written as bytes.
MOST_NUMBERS = 64


class Unspeakable(Exception):
    """Why a graph has no program text of its own."""


@dataclass(frozen=True)
class Given:
    """An input: a tensor as it is, or one of its kind that is ``drawn`` from the seed of its place."""

    tensor: torch.Tensor
    drawn: bool = False

    def value(self, place: int) -> torch.Tensor:
        """The tensor to run with."""
        if not self.drawn:
            return self.tensor
        like = self.tensor
        generator = torch.Generator().manual_seed(place)
        return (
            torch.randn(like.shape, generator=generator, dtype=torch.float64)
            .to(like.dtype)
            .to(like.device)
            .requires_grad_(like.requires_grad)
        )

    def text(self, place: int) -> str:
        """An expression for it."""
        tensor, kind = self.tensor, str(self.tensor.dtype)
        grad = ".requires_grad_()" if tensor.requires_grad else ""
        shape = tuple(tensor.shape)
        device = "" if tensor.device.type == "cpu" else f".to({str(tensor.device)!r})"
        if self.drawn:
            return f"drawn({shape}, {kind}, {place}){device}{grad}"
        plain = tensor.detach().cpu().contiguous()
        if tensor.numel() <= MOST_NUMBERS and not tensor.dtype.is_complex:
            made = f"torch.tensor({_numbers(plain.tolist())}, dtype={kind}).reshape({shape})"
        else:
            memory = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
            made = f"stored({base64.b64encode(zlib.compress(memory)).decode()!r}, {kind}, {shape})"
        if tensor.stride() != plain.stride():
            made = f"torch.empty_strided({shape}, {tuple(tensor.stride())}, dtype={kind}).copy_({made})"
        return f"{made}{device}{grad}"


def _numbers(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_numbers, value))}]"
    text = repr(value)
    return f"float({text!r})" if text in ("nan", "inf", "-inf") else text


def function_text(module: GraphModule) -> tuple[str, list[str]]:
    """The source of a function ``f`` that computes what the graph does, and the imports it needs. Unspeakable for what
    has no spelling."""
    if module.constants or any(node.op in ("get_attr", "call_module") for node in module.graph):
        raise Unspeakable("the graph holds an object that has no literal")
    text = module.code.replace("def forward(", "def f(", 1)
    text = re.sub(r"^    del [\w, ]+\n", "", text, flags=re.MULTILINE)  # memory is of no concern here
    imports = []
    for name, value in module._globals.items():
        if name in ("torch", "operator", "constants"):
            continue
        where, spelled = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if not where or not spelled.isidentifier():
            raise Unspeakable(f"{value!r:.80} has no name that could be imported")
        try:
            found = getattr(importlib.import_module(where), spelled, None)
        except Exception:
            found = None
        if found is not value or where == "__main__":
            raise Unspeakable(f"{spelled} cannot be imported from {where}")
        imports.append(f"from {where} import {spelled} as {name}")
    return text, imports


DRAWN = '''
def drawn(shape, dtype, seed):
    """Normal numbers, the same every time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
'''

STORED = '''
def stored(text, dtype, shape):
    """A tensor from its bytes."""
    memory = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).reshape(shape).clone()
'''


def script_text(module: GraphModule, given: Sequence[Given], options: dict[str, Any], remarks: Sequence[str],
                seed: int) -> str:  # fmt: skip
    """The whole program. Run, it prints a location, and an AssertionError says that the error is still there."""
    source, imports = function_text(module)
    inputs = [entry.text(place) for place, entry in enumerate(given)]
    lines = [f"# {_comment(line)}" for remark in remarks for line in remark.splitlines() or [""]]
    needs_bytes = any(text.find("stored(") >= 0 for text in inputs)
    head = ["import base64", "import zlib", ""] if needs_bytes else []
    head += ["import operator", ""] if "operator." in source else []
    head += ["import torch", "", "import staxlab", *imports]
    helpers = (DRAWN if any(entry.drawn for entry in given) else "") + (STORED if needs_bytes else "")
    body = "\n".join(f"        {text}," for text in inputs)
    asked = f", options={options!r}" if options else ""
    return (
        "\n".join([*lines, *head])
        + "\n\n\n"
        + source
        + ("\n" + helpers.rstrip("\n") + "\n" if helpers else "")
        + f"\n\ndef inputs():\n    return [\n{body}\n    ]\n\n\n"
        + 'if __name__ == "__main__":\n'
        + f"    location = staxlab.locate_error(f, *inputs(){asked}, seed={seed}, minimise=False)\n"
        + "    print(location)\n"
        + "    assert location.culprit is None, location.verdict\n"
    )


def _comment(line: str) -> str:
    """A line that is ASCII and cannot end the comment."""
    plain = line.encode("ascii", "backslashreplace").decode()
    return textwrap.shorten("".join(c if c.isprintable() else "?" for c in plain), 110, placeholder=" ...")


def save_script(text: str, path: Any) -> str:
    """Write a script so that the file is whole or was not touched. OptionError for a path that cannot be written."""
    target = os.path.abspath(os.fspath(path))
    try:
        write_whole(Path(target), text.encode(), private=False)
    except OSError as error:
        raise OptionError(
            f"the program that shows the error cannot be written to {os.fspath(path)}: {error.strerror}",
            remedy="name a file in a directory that exists and may be written to",
        ) from error
    return target
