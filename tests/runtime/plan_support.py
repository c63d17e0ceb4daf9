"""A program compiled by its stages and again from the cache, and everything that may be compared of the two."""

from __future__ import annotations

import re
import warnings

import torch

import staxlab

_SECONDS = re.compile(r"\b\d+\.\d+ (?:ms|s|us)\b")
_HEADING = re.compile(r"^restored from the cache, key plan-[0-9a-f]{64}: .*\n", re.MULTILINE)


def compiled(function, arguments, **options):
    """A compiled function after one call, with that call's result; warnings are another test's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dispatcher = staxlab.compile(function, **options)
        result = dispatcher(*arguments)
    return dispatcher, result


def compilation_of(dispatcher):
    return dispatcher.versions[-1].compilation


def halves(compilation):
    """The compilation and those of its backward pass."""
    yield compilation
    for _, half in compilation.backward_halves():
        yield half


def text_of(compilation) -> str:
    """All a compilation says, but for how long it took, whether a kernel was found compiled, and the heading."""
    text = _HEADING.sub("", str(compilation))
    return _SECONDS.sub("TIME", text).replace("(cached)", "(built)").replace("(compiled)", "(built)")


def generated(kernels) -> dict:
    """What the loader is given of each generated kernel."""
    return {
        k.name: (k.language, k.lines, k.arguments, k.nodes, k.device, k.origins, k.flags, k.operations)
        for k in kernels
        if k.language != "extern"
    }


def difference(fresh, restored) -> str | None:
    """What differs between a compilation that ran its stages and one that was restored, in words; None if nothing."""
    for ours, theirs in zip(halves(fresh), halves(restored), strict=True):
        if ours.restored or not theirs.restored:
            return f"restored: {ours.restored}, then {theirs.restored} ({theirs!r})"
        if not {"loops", "schedule", "kernels", "wrapper"}.isdisjoint(theirs.records):
            return f"stages ran: {[*theirs.records]}"
        if generated(ours.kernels) != generated(theirs.plan.kernels):
            return "the kernels differ"
        if ours.wrapper.lines != theirs.plan.wrapper.lines:
            return "the wrappers differ"
        if str(ours.artifact).replace("compiled", "cached") != str(theirs.artifact).replace("compiled", "cached"):
            return "the artifacts differ"
    if text_of(fresh) != text_of(restored):
        ours, theirs = text_of(fresh).splitlines(), text_of(restored).splitlines()
        lines = [f"{a}\n  {b}" for a, b in zip(ours, theirs, strict=False) if a != b]
        return "\n".join(lines) or "one text is longer"
    return None


def planned(compilation) -> bool:
    """Whether a compilation, and every backward half, is one that is kept."""
    return all(half.plan_key and "artifact" in half.records for half in halves(compilation))


def bitwise(first, second) -> bool:
    """Equal results, NaN and signed zeros included, of any structure."""
    if isinstance(first, torch.Tensor):
        same = (first.dtype, first.shape, first.stride()) == (second.dtype, second.shape, second.stride())
        return same and torch.equal(first.detach().nan_to_num(7e7), second.detach().nan_to_num(7e7))
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(bitwise, first, second))
    return first == second
