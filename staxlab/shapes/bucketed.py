"""A function whose variable sizes are rounded up to buckets before it is called (Section 10.4, Proposition 10.3).

``bucketed(fn, ...)`` pads the dimensions that vary, calls ``fn``, which so sees a few sizes only, and cuts the padding
off its results. What is padded must not count, and there are three ways to see to that: an element that is neutral for
what ``fn`` does (0 for a sum, minus infinity for a maximum), the true length as an argument (for a mean), or a mask
(for a softmax). Which is right nobody can read off a function, so the caller says it and the wrapper tries it
(:mod:`.neutrality`): before the first padded call of each kind, the function itself runs on the arguments as they are
and on the padded ones, and has to agree.

===========================  =========================================================================================
checked at every call        sizes that agree, buckets that hold them, elements the type can hold; that results have
                             the size where they should, are no numbers and no views of a padded argument; that no
                             padded argument was written to
checked once for each kind   that results, written arguments and gradients do not depend on the padding, tried on the
of padded call               arguments, their negation, and on all-positive and all-negative ones; that nothing random
                             is drawn
not checked                  that no *other* values of the arguments would show the padding; what a function keeps
                             outside its arguments, and gradients of what it finds there
===========================  =========================================================================================
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import ConstraintError, OptionError
from ..specialize.ambient import must_run_eagerly
from .bucketing import Buckets
from .neutrality import Attempt, require_neutral
from .results import Declared, cut, described, tensors_in

Dimensions = Mapping[int, str]  # dimension of a tensor: the name of the size it has


def bucketed(
    fn: Callable[..., Any],
    *,
    dims: Mapping[str, int | Dimensions],
    pad: float | Mapping[str, float],
    results: Declared = None,
    lengths: Mapping[str, str] | None = None,
    masks: Mapping[str, str] | None = None,
    buckets: Buckets | Mapping[str, Buckets] | None = None,
    check: bool = True,
) -> Bucketed:
    """``fn``, usually compiled, behind a wrapper that pads its variable sizes (Proposition 10.3).

    dims     for each argument that is padded, which of its dimensions varies: ``{"x": 0}`` (a size called "n"), or with
             names, ``{"x": {0: "rows", -1: "columns"}}``. Dimensions of one name have one size
    pad      the element to pad with: one for all, or one for each argument. ``-math.inf`` is neutral for maxima
    results  where results carry a size, to be cut: like one entry of ``dims`` for one result, a list of these (None
             for none) for several, in their order. Without it nothing is cut
    lengths  ``{"n": "length"}``: the parameter ``length`` of ``fn``, which callers leave out, gets the true size, as an
             int64 tensor without dimensions (a number would be a version for each size)
    masks    ``{"n": "valid"}``: the parameter ``valid`` gets a bool tensor of the padded size, True where data are
    buckets  :class:`Buckets`, for all sizes or by name; powers of two if not given
    check    try, at the first padded call of each kind (buckets, types, other arguments), that padding changes
             nothing. It runs the function itself, not its compiled version, a few times in double precision, or in its
             own where it cannot be run in double. An element that is neutral for some values only (0 for a maximum of
             what is never negative) is refused

    With ``fn`` compiled, ``.versions`` are its versions: for arguments of one kind (types, other sizes, gradients) at
    most ``buckets.bound(m, M)`` for one size in ``[m, M]``, and one more for size 0.

    Within a function that is being recorded, or under ``torch.vmap`` and the like, nothing is padded: ``fn`` is called
    on the arguments as they are, with their lengths and masks of nothing but True.

    Raises OptionError at once for a declaration that cannot be (an unknown parameter, a padded argument without an
    element); ConstraintError at a call for whatever does not fit it, before anything is returned. What ``fn`` raises
    passes through. A call copies its padded arguments and, where the size is not in front, its results: O(their bytes).

    >>> total = bucketed(lambda x: x.sum(), dims={"x": 0}, pad=0.0)
    >>> [float(total(torch.ones(n))) for n in (3, 4, 5)], sorted(size for (size,) in total.calls)
    ([3.0, 4.0, 5.0], [4, 8])
    """
    return Bucketed(fn, dims, pad, results, lengths or {}, masks or {}, buckets or Buckets(), check)


class Bucketed:
    """What :func:`bucketed` returns. ``calls`` counts the calls for each combination of padded sizes, in the order of
    ``sizes``; ``versions`` are those of the compiled function."""

    def __init__(
        self,
        fn: Callable[..., Any],
        dims: Mapping[str, int | Dimensions],
        pad: float | Mapping[str, float],
        results: Declared,
        lengths: Mapping[str, str],
        masks: Mapping[str, str],
        buckets: Buckets | Mapping[str, Buckets],
        check: bool,
    ) -> None:
        if not callable(fn):
            raise OptionError(f"bucketed takes a function or module first, got {type(fn).__name__}")
        # A dispatcher's function runs without compiling for every size that is tried.
        self.fn, self._original = fn, fn.__wrapped__ if hasattr(fn, "versions") and hasattr(fn, "__wrapped__") else fn
        self.__name__ = getattr(fn, "__name__", None) or type(self._original).__name__
        target = self._original.forward if isinstance(self._original, torch.nn.Module) else self._original
        try:
            self._signature = inspect.signature(target)
        except (TypeError, ValueError):
            raise OptionError(
                f"{self.__name__} does not say what its parameters are called", remedy="wrap it: lambda x: f(x)"
            ) from None
        self._dims = {name: _dimensions(name, given) for name, given in dims.items()}
        self.sizes = tuple(dict.fromkeys(size for given in self._dims.values() for size in given.values()))
        self._lengths, self._masks = dict(lengths), dict(masks)
        self._pad = {name: pad.get(name) if isinstance(pad, Mapping) else pad for name in self._dims}
        self._buckets = {
            size: buckets.get(size, Buckets()) if isinstance(buckets, Mapping) else buckets for size in self.sizes
        }
        self._results, self._check = results, check
        self._refuse_unknown(pad, buckets)
        extra = {*self._lengths.values(), *self._masks.values()}
        kept = [p for name, p in self._signature.parameters.items() if name not in extra]
        self.__signature__ = self._signature.replace(parameters=kept)
        self._tried: set[Any] = set()
        self.calls: Counter[tuple[int, ...]] = Counter()

    @property
    def versions(self) -> tuple[Any, ...]:
        """The versions of the compiled function. AttributeError if it is not compiled."""
        return self.fn.versions

    def __repr__(self) -> str:
        how = ", ".join(f"{size}: {self._buckets[size]}" for size in self.sizes)
        versions = f", {len(self.fn.versions)} versions" if hasattr(self.fn, "versions") else ""
        return f"<bucketed {self.__name__} ({how}): {len(self.calls)} padded sizes{versions}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.__signature__.bind(*args, **kwargs)
        given = dict(bound.arguments)
        sizes = self._sizes_of(given)
        if must_run_eagerly():
            return self._call(self.fn, given, sizes, sizes)
        targets = {name: self._rounded(name, size) for name, size in sizes.items()}
        is_padded = sizes != targets
        padded = self._padded(given, sizes, targets)
        if self._check and is_padded:
            self._try(given, sizes, targets)
        writes = {name: _writes(padded[name]) for name in self._dims if name in padded}
        result = self._call(self.fn, padded, sizes, targets)
        for name, before in writes.items():
            if _writes(padded[name]) != before:
                raise ConstraintError(
                    f"{self.__name__} writes into its argument {name}, of which it is given a padded copy",
                    remedy="let it return what it computes, or do not pad this argument",
                )
        self._refuse_views(result, padded)
        result = cut(result, self._results, sizes, targets, self.__name__)
        self.calls[tuple(targets[name] for name in self.sizes if name in targets)] += 1
        return result

    # -- what was declared --------------------------------------------------------------------------------------------

    def _refuse_unknown(self, pad: Any, buckets: Any) -> None:
        known = tuple(self._signature.parameters)
        if not self._dims:
            raise OptionError("dims is empty: no size would be padded", remedy='for example dims={"x": 0}')
        for what, names in (
            ("dims", self._dims),
            ("pad", pad if isinstance(pad, Mapping) else ()),
            ("lengths", self._lengths.values()),
            ("masks", self._masks.values()),
        ):
            for name in names:
                if name not in known:
                    raise OptionError(f"{what} names {name!r}, but {self.__name__} has no such parameter",
                                      remedy=f"its parameters are {', '.join(known)}")  # fmt: skip
        for what, names in (
            ("lengths", self._lengths),
            ("masks", self._masks),
            ("buckets", buckets if isinstance(buckets, Mapping) else ()),
            ("results", _named(self._results)),
        ):
            for name in names:
                if name not in self.sizes:
                    raise OptionError(f"{what} names the size {name!r}, which no argument has",
                                      remedy=f"the sizes in dims are {', '.join(self.sizes)}")  # fmt: skip
        twice = [name for name, count in Counter([*self._dims, *self._lengths.values(), *self._masks.values()]).items()
                 if count > 1]  # fmt: skip
        if twice:
            raise OptionError(f"{twice[0]!r} cannot be both a padded argument and a length or mask, or two of these")
        for name, element in self._pad.items():
            if not isinstance(element, (int, float, complex)):
                raise OptionError(f"{name} is padded, and pad does not say with what",
                                  remedy=f'an element that does not count there: pad={{"{name}": 0.0}}')  # fmt: skip

    # -- one call -----------------------------------------------------------------------------------------------------

    def _sizes_of(self, given: Mapping[str, Any]) -> dict[str, int]:
        """The true sizes; ConstraintError where two dimensions of one name differ."""
        sizes: dict[str, tuple[int, str]] = {}
        for argument, dimensions in self._dims.items():
            if argument not in given:
                continue  # left to its default
            tensor = given[argument]
            if not isinstance(tensor, torch.Tensor):
                raise ConstraintError(f"{argument} should be a tensor to be padded, not a {type(tensor).__name__}")
            for dim, name in dimensions.items():
                if not -tensor.dim() <= dim < tensor.dim():
                    raise ConstraintError(f"{argument} has no dimension {dim}: its shape is {tuple(tensor.shape)}")
                size, where = tensor.shape[dim], f"dimension {dim} of {argument}"
                other, there = sizes.setdefault(name, (size, where))
                if other != size:
                    raise ConstraintError(f"the size {name} is {other} in {there} and {size} in {where}",
                                          remedy="give sizes that may differ names of their own")  # fmt: skip
        missing = [name for name in self.sizes if name not in sizes]
        if missing:
            raise ConstraintError(f"no argument of this call has the size {missing[0]}")
        return {name: size for name, (size, _) in sizes.items()}

    def _rounded(self, name: str, size: int) -> int:
        try:
            return self._buckets[name].round_up(size)
        except ConstraintError as error:
            raise ConstraintError(f"{name}: {error.what}", remedy=error.remedy) from None

    def _padded(self, given: Mapping[str, Any], sizes: Mapping[str, int], targets: Mapping[str, int]) -> dict[str, Any]:
        padded = dict(given)
        for argument, dimensions in self._dims.items():
            if argument in given:
                tensor, shape = given[argument], list(given[argument].shape)
                for dim, name in dimensions.items():
                    shape[dim] = targets[name]
                padded[argument] = filled(tensor, tuple(shape), self._pad[argument], argument)
        return padded

    def _call(self, fn: Any, given: Mapping[str, Any], sizes: Mapping[str, int], targets: Mapping[str, int]) -> Any:
        """``fn`` on these arguments and on the lengths and masks it is to be given."""
        values = dict(given)
        for name, parameter in self._lengths.items():
            values[parameter] = torch.tensor(sizes[name], device=self._device_of(given, name))
        for name, parameter in self._masks.items():
            values[parameter] = torch.arange(targets[name], device=self._device_of(given, name)) < sizes[name]
        ordered = {name: values[name] for name in self._signature.parameters if name in values}
        bound = inspect.BoundArguments(self._signature, ordered)  # type: ignore[arg-type]
        return fn(*bound.args, **bound.kwargs)

    def _device_of(self, given: Mapping[str, Any], name: str) -> torch.device:
        return next(given[a].device for a, dimensions in self._dims.items() if name in dimensions.values())

    def _try(self, given: Mapping[str, Any], sizes: Mapping[str, int], targets: Mapping[str, int]) -> None:
        """Once for each kind of padded call: padding must change nothing. Sizes 1 broadcast, so they are a kind too."""
        leaves = list(tensors_in(list(given.values())))
        if isinstance(self._original, torch.nn.Module):
            leaves += self._original.parameters()
        trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in leaves)
        kind = (
            trains,
            tuple(sorted(targets.items())),
            tuple(name for name, size in sizes.items() if size <= 1 or size == targets[name]),
            tuple((name, described(value, self._dims.get(name))) for name, value in given.items()),
        )
        if kind in self._tried:
            return

        def run(function: Any, values: Mapping[str, Any], with_padding: bool) -> Any:
            goal = targets if with_padding else sizes
            result = self._call(function, self._padded(values, sizes, goal), sizes, goal)
            return cut(result, self._results, sizes, goal, self.__name__)

        unpadded = tuple(name for name in given if name not in self._dims)
        words = ", ".join(f"{name} from {size} to {targets[name]}" for name, size in sizes.items())
        largest = max(targets.values())
        require_neutral(Attempt(self.__name__, self._original, dict(given), unpadded, run, words, largest, trains))
        self._tried.add(kind)

    def _refuse_views(self, result: Any, padded: Mapping[str, Any]) -> None:
        starts = {padded[name].untyped_storage().data_ptr(): name for name in self._dims if name in padded}
        for tensor in tensors_in(result):
            start = tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
            if start and start in starts:
                raise ConstraintError(
                    f"a result of {self.__name__} is a view of its argument {starts[start]}, which is a padded copy",
                    remedy="return a copy of it, for example with .clone()",
                )


# --- Padding ----------------------------------------------------------------------------------------------------------


def filled(tensor: torch.Tensor, shape: tuple[int, ...], element: float, name: str) -> torch.Tensor:
    """``tensor`` at the beginning of a tensor of this shape, the rest ``element``; contiguous, so that the layout of
    the argument makes no further version. Gradients pass through. ConstraintError if its type cannot hold the element.
    """
    if not holds(tensor.dtype, element):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ConstraintError(f"{name} is of type {kind}, which cannot hold its padding {element!r}",
                              remedy="pad with an element of that type, or convert the argument first")  # fmt: skip
    if tuple(tensor.shape) == shape:
        return tensor.contiguous()
    result = tensor.new_full(shape, element)
    result[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return result


def holds(dtype: torch.dtype, element: float) -> bool:
    """Whether the type has this element: exactly for bools and integers, to rounding for others."""
    try:
        held = torch.full((), element, dtype=dtype).item()
    except (RuntimeError, OverflowError, ValueError, TypeError):
        return False
    if isinstance(element, complex) or isinstance(held, complex):
        return dtype.is_complex
    if math.isnan(element) or math.isnan(held):
        return math.isnan(element) and math.isnan(held)
    return math.isinf(held) == math.isinf(element) if dtype.is_floating_point else held == element


def _writes(tensor: torch.Tensor) -> int:
    """How often a tensor was written to; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _dimensions(argument: str, given: int | Dimensions) -> dict[int, str]:
    if isinstance(given, int) and not isinstance(given, bool):
        return {given: "n"}
    if isinstance(given, Mapping) and given:
        whole = all(isinstance(dim, int) and not isinstance(dim, bool) for dim in given)
        if whole and all(isinstance(name, str) and name for name in given.values()):
            return dict(given)
    raise OptionError(f"dims[{argument!r}] = {given!r} says of no dimension that it varies",
                      remedy='write a dimension, dims={"x": 0}, or name its size, dims={"x": {0: "rows"}}')  # fmt: skip


def _named(results: Declared) -> Sequence[str]:
    """The sizes that a declaration of results names."""
    if isinstance(results, Mapping):
        return tuple(results.values())
    if isinstance(results, (list, tuple)):
        return tuple(name for entry in results for name in _named(entry))
    return () if results is None else ("n",)
