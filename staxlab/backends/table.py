"""The table of backends and how a row gets into it (Section 11.4, and the contract of Section 1.2).

``backend(graph_module, example_inputs, **options) -> callable``: a backend is given a graph and returns what runs in
its place. *Which* graph is the one thing a row decides, by naming the last of our stages that runs before it:

=============  =================================================================================================
``after``      what ``graph_module`` is
=============  =================================================================================================
"transforms"   the captured graph after its rewrites (Section 4): Python-level calls, with writes into inputs and
               random numbers as the program has them. Gradients are autograd's, through what the callable does
"operators"    a graph of ``aten`` overloads without writes and without views among its results (Section 5.1). In a
               training region forward and backward half come one by one, so a backend needs no derivatives
=============  =================================================================================================

The three prefixes of Section 11.4 are rows, too: ``eager`` ends with "transforms" and ``aot_eager`` with "operators",
where our interpreter runs the graph, and ``stax`` goes on to "artifact". So a locator of errors and a benchmark walk
one table.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import OptionError

PLACES = ("transforms", "operators")


@dataclass(frozen=True, eq=False)
class Backend:
    """One row. ``after`` is the last of our stages that runs. ``function`` is the backend itself, or "module:name" of
    one that is imported at its first use; None for the prefixes, which need none. ``extra`` names what to install.

    Two rows are equal if they have name and stage in common and the very same function.
    """

    name: str
    after: str
    summary: str = ""
    function: Callable[..., Any] | str | None = field(default=None, repr=False)
    extra: str | None = None

    @property
    def is_outside(self) -> bool:
        """Whether a graph is handed to someone else's compiler."""
        return self.function is not None

    def load(self) -> Callable[..., Any]:
        """The function. Imports the module of one that ships with the package, and not yet its library."""
        if not isinstance(self.function, str):
            assert self.function is not None
            return self.function
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(module), name)

    def parameters(self) -> tuple[frozenset[str], bool]:
        """Options the backend declares by name, and whether it takes any other, too (``**options``)."""
        if not self.is_outside:
            return frozenset(), False
        try:
            declared = list(inspect.signature(self.load()).parameters.values())
        except (TypeError, ValueError):  # a builtin without a signature
            return frozenset(), False
        declared = declared[2:] if all(map(_is_positional, declared[:2])) else declared
        named = (p.name for p in declared if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
        return frozenset(named), any(p.kind is p.VAR_KEYWORD for p in declared)

    def _identity(self) -> tuple[Any, ...]:
        function = self.function if isinstance(self.function, str | None) else id(self.function)
        return self.name, self.after, function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backend) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)


#: The prefixes of the pipeline, the shortest first (Section 11.4).
OWN: dict[str, Backend] = {
    row.name: row
    for row in (
        Backend("eager", "transforms", "the captured graph after its rewrites, run node by node"),
        Backend("aot_eager", "operators", "the operator graph, forward and backward half, run node by node"),
        Backend("stax", "artifact", "the whole pipeline: fused kernels of our own"),
    )
}

_HERE = "staxlab.backends"
_SHIPPED = (
    Backend("onnxrt", "operators", "ONNX, run by onnxruntime (CPU)", f"{_HERE}.onnxrt:onnxrt", "onnxrt"),
    Backend("tvm", "operators", "TVM: our compute functions, its schedules and code (CPU)", f"{_HERE}.tvm:tvm", "tvm"),
    Backend("cudagraphs", "operators", "PyTorch's operators, as a CUDA Graph", f"{_HERE}.cudagraphs:cudagraphs"),
)
_registered: dict[str, Backend] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class BackendTable:
    """What ``backend=`` may name, as a table that prints and draws itself. Iterates over its rows."""

    rows: tuple[Backend, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.rows)

    def __iter__(self) -> Iterator[Backend]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def cells(self) -> list[tuple[str, str, str, str]]:
        """Name, last stage of ours, what runs, and the extra to install, for each row."""
        return [(row.name, row.after, row.summary, row.extra or "-") for row in self.rows]

    def format(self) -> str:
        head = ("backend", "our stages end with", "what runs then", "extra")
        lines = [head, *self.cells()]
        widths = [max(len(line[column]) for line in lines) for column in range(3)]
        return "\n".join(
            "  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[3]]).rstrip()
            for line in lines
        )

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def list_backends() -> BackendTable:
    """Every backend that ``staxlab.compile(fn, backend=...)`` knows: the prefixes of the pipeline, those that ship with
    the package (their libraries may not be installed), and those that were registered, in that order."""
    with _lock:
        return BackendTable((*OWN.values(), *_SHIPPED, *_registered.values()))


def names() -> tuple[str, ...]:
    """The names of all backends."""
    return list_backends().names


def find(name: str) -> Backend | None:
    """The row called ``name``, or None. O(number of rows)."""
    return next((row for row in list_backends() if row.name == name), None)


def register_backend(
    name: str, backend: Callable[..., Any] | None = None, *, after: str = "transforms", replace: bool = False
) -> Any:
    """Let ``staxlab.compile(fn, backend=name)`` hand its graphs to ``backend`` (the contract of Section 1.2).

    ``backend(graph_module, example_inputs, **options)`` returns a callable of as many tensors as ``graph_module`` has
    placeholders, which returns its results as a tuple or list. ``example_inputs`` are copies with the values, strides
    and ``requires_grad`` of the call that is compiled; it may run the graph on them. Of ``options=`` it gets those it
    declares as parameters (an option of ours among them: its value). ``after`` says which graph it is given, see
    :mod:`staxlab.backends.table`.

    Without ``backend`` this is a decorator. Returns the function. ``replace`` lets the name be taken over from an
    earlier registration, as a notebook cell that runs twice wants it; what was compiled with the old one keeps it.

    Raises OptionError for a name that is no Python identifier, is taken, or belongs to the package; for something that
    is not callable; and for an unknown ``after``.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise OptionError(f"a backend's name is a Python identifier, not {name!r}", remedy="such as 'my_backend'")
    if after not in PLACES:
        raise OptionError(f"after={after!r} is no place for a backend: it is one of {', '.join(map(repr, PLACES))}")
    if backend is None:
        return lambda function: register_backend(name, function, after=after, replace=replace)
    if not callable(backend):
        raise OptionError(
            f"backend {name!r} is not callable, but {type(backend).__name__}",
            remedy="a backend is a function of graph_module and example_inputs that returns a callable",
        )
    row = Backend(name, after, _summary(backend), backend)
    with _lock:
        if name in OWN or any(name == shipped.name for shipped in _SHIPPED):
            raise OptionError(f"backend {name!r} belongs to the package", remedy="choose another name")
        taken = _registered.get(name)
        if taken is not None and not replace and taken != row:
            raise OptionError(f"backend {name!r} is registered already", remedy="choose another name, or replace=True")
        _registered[name] = row
    return backend


def clear() -> None:
    """Forget what was registered. Compiled functions keep their backend."""
    with _lock:
        _registered.clear()


def of_callable(backend: Callable[..., Any]) -> Backend:
    """A row, outside the table, for a backend that was passed itself."""
    name = getattr(backend, "__name__", None) or type(backend).__name__
    return Backend(name, "transforms", _summary(backend), backend)


def _summary(backend: Any) -> str:
    first = (inspect.getdoc(backend) or "").partition("\n")[0]
    return first or f"{getattr(backend, '__module__', '')}.{getattr(backend, '__qualname__', type(backend).__name__)}"
