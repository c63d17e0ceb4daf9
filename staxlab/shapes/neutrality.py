"""Does padding change what a function computes? The question behind bucketing, tried by running (Section 10.4).

Padding is neutral if ``f(x)`` and ``f(padded x)``, cut back, are the same for every ``x``. That is a property of the
mathematics, not of a kernel, so it is asked where rounding cannot blur the answer: the function itself, uncompiled,
runs in double precision on the CPU, without padding and with it; a module as a copy of it. A function that does not
run there (constants of another type, a GPU's tensors behind its back) runs where and as it is, with more room for
rounding.

Where gradients are recorded they have to agree as well: minus infinity is neutral for ``(x * w.abs()).amax()``, and
makes the gradient of ``w`` a sum of its products with zeros, which is NaN.

One sample proves little: 0 looks neutral for a maximum as long as the sample holds a positive number. So floating-point
arguments are also tried negated, all positive and all negative. What eager refuses is not tried further.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ConstraintError
from .results import mapped, tensors_in


@dataclass(frozen=True)
class Attempt:
    """What is to be tried. ``run(function, arguments, with_padding)`` calls it; ``unpadded`` names the arguments that
    are passed on as they are, and may be written to; ``words`` say which size becomes which; ``largest`` of these.
    ``trains``: gradients are recorded, and compared too."""

    name: str
    function: Any
    arguments: Mapping[str, Any]
    unpadded: tuple[str, ...]
    run: Callable[[Any, Mapping[str, Any], bool], Any]
    words: str
    largest: int
    trains: bool = False


@dataclass(frozen=True)
class Setting:
    """Where to run: how arguments get there, and modules (a copy already), and what to try there."""

    move: Callable[[torch.Tensor], torch.Tensor]
    module: Callable[[torch.nn.Module], torch.nn.Module]
    changes: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...]


def _in_double(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.complex128 if tensor.is_complex() else torch.float64 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", wide, copy=True)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


#: Results, arguments and buffers that may have been written to, gradients.
Observed = tuple[list[Any], list[torch.Tensor], list[torch.Tensor]]

_SAMPLE = ("these arguments", lambda tensor: tensor)
_SETTINGS = (
    Setting(
        _in_double,
        lambda module: module.to("cpu").double(),
        (
            _SAMPLE,
            ("their negation", torch.neg),
            ("positive arguments", lambda tensor: tensor.abs() + 1),
            ("negative arguments", lambda tensor: -tensor.abs() - 1),
        ),
    ),
    Setting(_as_it_is, lambda module: module, (_SAMPLE,)),
)


def require_neutral(attempt: Attempt) -> None:
    """ConstraintError, with the place and both values, if padding changes anything; what the function raises on its
    unpadded arguments, if it raises in every setting. The state of random generators stays as it was. Runs the function
    twice for each thing tried."""
    for setting in _SETTINGS:
        refused: Exception | None = None
        for position, (words, change) in enumerate(setting.changes):
            try:
                plain = _observed(attempt, setting, change, False)
            except ConstraintError:  # ours: no random numbers, results as declared
                raise
            except Exception as error:  # whatever eager says to this
                refused = error
                if position == 0:
                    break
                continue
            _compare(attempt, plain, _with_padding(attempt, setting, change, words), words)
        else:
            return
    assert refused is not None
    raise refused


def _devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


def _random_states() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in _devices())]


def _with_padding(attempt: Attempt, setting: Setting, change: Callable, words: str) -> Any:
    try:
        return _observed(attempt, setting, change, True)
    except ConstraintError:
        raise
    except Exception as error:
        raise ConstraintError(
            f"{attempt.name} runs on {words}, and fails once they are padded ({attempt.words}): "
            f"{type(error).__name__}: {error}",
            remedy="what is padded must not reach what fails: use a mask or the true length",
        ) from error


def _observed(attempt: Attempt, setting: Setting, change: Callable, with_padding: bool) -> tuple[Observed, float]:
    """What one run leaves behind, and the largest finite argument."""
    function = attempt.function
    if isinstance(function, torch.nn.Module):
        function = setting.module(copy.deepcopy(function))
    sources: list[torch.Tensor] = []

    def prepared(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        moved = setting.move(leaf)
        moved = change(moved) if moved.is_floating_point() else moved
        if not (attempt.trains and leaf.requires_grad):
            return moved
        sources.append(moved.requires_grad_())
        return moved.clone()  # no leaf of the graph: it may be written to as the caller's may

    with torch.set_grad_enabled(attempt.trains):
        arguments = {name: mapped(value, prepared) for name, value in attempt.arguments.items()}
    floats = [t.detach().abs() for t in tensors_in(list(arguments.values())) if t.is_floating_point() and t.numel()]
    scale = max((float(t[t.isfinite()].max()) for t in floats if t.isfinite().any()), default=0.0)
    with torch.set_grad_enabled(attempt.trains), torch.random.fork_rng(devices=_devices()):
        before = _random_states()
        result = attempt.run(function, arguments, with_padding)
        drew = any(not torch.equal(one, other) for one, other in zip(before, _random_states(), strict=True))
        if drew:
            raise ConstraintError(
                f"{attempt.name} draws random numbers, and would draw others for padded arguments",
                remedy="draw them outside, and pass them as an argument that is padded, too",
            )
        written = [arguments[name] for name in attempt.unpadded]
        if isinstance(function, torch.nn.Module):
            written.append(list(function.buffers()))
            sources += [parameter for parameter in function.parameters() if parameter.requires_grad]
        gradients = _gradients(result, sources) if attempt.trains else []
    return (list(_leaves(result)), list(tensors_in(written)), gradients), scale


def _gradients(result: Any, sources: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of all results, each element weighted by a number of its own, for every source; zeros for unused."""
    total = torch.zeros(())
    for tensor in tensors_in(result):
        if tensor.requires_grad:
            weights = torch.linspace(1.0, 2.0, tensor.numel(), dtype=torch.float64, device=tensor.device)
            total = total.to(tensor.device) + (tensor * weights.reshape(tensor.shape).to(tensor.dtype)).sum().real
    if not sources or not total.requires_grad:
        return []
    return list(torch.autograd.grad(total, sources, allow_unused=True, materialize_grads=True))


def _leaves(result: Any) -> Iterator[Any]:
    found: list[Any] = []
    mapped(result, found.append)
    yield from found


def _compare(attempt: Attempt, plain: tuple[Observed, float], padded: tuple[Observed, float], words: str) -> None:
    observed, scale = plain
    for what, before, after in zip(("result", "written argument", "gradient"), observed, padded[0], strict=True):
        if len(before) != len(after):
            raise _depends(attempt, words, f"{len(before)} {what}s became {len(after)}")
        for number, (one, other) in enumerate(zip(before, after, strict=True), 1):
            difference = _difference(one, other, scale, attempt.largest)
            if difference:
                raise _depends(attempt, words, f"{what} {number}: {difference}")


def _depends(attempt: Attempt, words: str, how: str) -> ConstraintError:
    return ConstraintError(
        f"padding changes what {attempt.name} computes ({attempt.words}), tried on {words}: {how}",
        remedy="pad with the neutral element of what is done with the argument (pad=), give the function the true "
        "length (lengths=) or a mask (masks=), or declare in results which dimensions have the size",
    )


def _difference(one: Any, other: Any, scale: float, largest: int) -> str:
    """Where two results differ by more than rounding explains; empty if nowhere."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return "" if one is None and other is None else f"{one!r} and {other!r}"
    one, other = one.detach(), other.detach()
    if one.shape != other.shape:
        return f"its shape is {tuple(one.shape)} without padding and {tuple(other.shape)} with it, cut as declared"
    if one.dtype != other.dtype:
        return f"its type is {one.dtype} without padding and {other.dtype} with it"
    if not one.numel():
        return ""
    if one.is_floating_point() or one.is_complex():
        spacing = torch.finfo(one.dtype).eps
        finite = one.abs()[one.isfinite()]
        size = float(finite.max()) if finite.numel() else 0.0
        # Sums in another order: an addition rounds by half the spacing of what has been added up so far.
        room = 64 * spacing * (size + largest * scale)
        same = torch.isclose(one, other, rtol=0.0, atol=room, equal_nan=True)
    else:
        same = one == other
    if bool(same.all()):
        return ""
    place = tuple(int(i) for i in (~same).nonzero()[0])
    at = f" at {place}" if place else ""
    return f"{one[place].item():.9g}{at} without padding and {other[place].item():.9g} with it"
