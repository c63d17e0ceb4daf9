"""Algorithm 11.1: the shortest prefix of the pipeline that disagrees with eager execution, and what it adds.

The pipeline is a composition ``T_k ... T_1`` in which every step ought to preserve the meaning. The debugging backends
are prefixes of it, so they are run one after the other: ``eager`` (capture and passes), ``aot_eager`` (and the
operators, forward and backward), and ``stax``, strictly first, so that what no kernel covers is said. The first that is
wrong is then taken apart by bisection, in O(log k) further runs for its k steps: over the graphs between passes, over
joint graph and division, or over what stands between operators and machine code.

The first two prefixes call the same operators as eager execution and are held to its bits, except where a rule or a
decomposition is known to round otherwise. Everything else is held to the bound of
:mod:`staxlab.measure.program_bounds`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from ..capture.tracer import trace
from ..errors import BuildError, MissingDependencyError, OptionError, StaxError
from ..measure.agreement import Agreement
from ..options import Options
from ..specialize.compiled_module import CompiledModule, uncompiled
from ..specialize.dispatch import Dispatcher
from .prefixes import Run
from .record import REFUSED, Check, Culprit, Location, first_line
from .sample import Observation, Sample

Progress = Callable[[str], None]

#: What :func:`staxlab.compile` takes beside its ``options``.
_BESIDE = frozenset({"extra", "backend", "mode", "dynamic", "strict_native", "outside"})


def locate_error(
    fn: Callable | torch.nn.Module,
    *args: Any,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
    upstream: Any = None,
    minimise: bool = True,
    save: Any = None,
    samples: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Location:
    """Find the layer in which compiled and eager execution of ``fn(*args, **kwargs)`` part (Algorithm 11.1).

    ``fn`` may be a compiled function: then what it holds is compared as well, which finds guards that let a version
    serve inputs it was not made for. Where an input or parameter requires grad, gradients are compared too;
    ``upstream`` are the upstream gradients (one for each differentiable result; normal numbers by default).
    ``options`` and ``mode`` are those of :func:`staxlab.compile`. ``samples`` tries more inputs, with floating-point
    tensors drawn anew, until one shows an error. ``minimise`` cuts a failing graph down to a small program, which
    ``save`` (a path) is written to. ``progress`` hears what is being done.

    ``fn`` runs several times, each time on copies of its arguments, from one random state; what it finds outside them
    is put back. Three to five compilations, and for an error O(log k) runs of prefixes inside the backend at fault;
    where a prefix is not equal bit for bit, seven or eight executions in double precision make the bounds. A keyword
    argument of ``fn`` that has one of the names above has to be passed by position, or in a lambda.

    Raises what ``fn`` itself raises in eager execution, OptionError for parameters that are not allowed, and BuildError
    without a compiler. An interruption leaves everything as it was.
    """
    if samples < 1:
        raise OptionError(f"samples={samples} is not allowed: at least one input is tried")
    given = fn if isinstance(fn, (Dispatcher, CompiledModule)) else None
    plain = fn.fn if isinstance(fn, Dispatcher) else uncompiled(fn)
    if not callable(plain):
        raise OptionError(f"staxlab.locate_error takes a function or module first, got {type(fn).__name__}")
    held = getattr(given, "dispatcher", given)
    resolved = Options.resolve(mode=mode, options=options)
    if held is not None and options is None and mode is None:
        resolved = replace(held.options, backend="stax", strict_native=False)
    search = Search(plain, given, resolved, seed, progress or (lambda text: None))
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        culprit, sample = search.over(args, kwargs, samples, upstream)
        script, path = "", ""
        if culprit is not None and minimise and sample is not None:
            from .minimise import minimised

            script, note = minimised(search, sample, culprit)
            search.notes += [note] if note else []
            if script and save is not None:
                from .script import save_script

                path = save_script(script, save)
    return Location(
        search.name, "stax", tuple(search.checks), culprit, search.uncovered if culprit is None else "", script, path,
        tuple(search.notes), search.tried, time.perf_counter() - start,
    )  # fmt: skip


class Search:
    """One search: what was checked so far, and the tools for checking."""

    def __init__(self, fn: Any, given: Any, options: Options, seed: int, progress: Progress):
        self.fn, self.given, self.options, self.seed, self.progress = fn, given, options, seed, progress
        self.name = getattr(fn, "__name__", None) or type(fn).__name__
        self.checks: list[Check] = []
        self.notes: list[str] = []
        self.uncovered = ""
        self.raised: type[Exception] | None = None  # what the backend raises where that is the error
        self.tried = 0
        self.inside = False

    # -- the samples --------------------------------------------------------------------------------------------------

    def over(
        self, args: tuple, kwargs: dict[str, Any], samples: int, upstream: Any
    ) -> tuple[Culprit | None, Sample | None]:
        """Try inputs until one shows an error."""
        first: Sample | None = None
        for number in range(samples):
            given = (args, kwargs) if first is None else first.another(self.seed + number)
            try:
                sample = self.sample(*given, upstream, self.seed + number)
            except StaxError as error:
                self._note_check("eager", "capture", error)
                where = (error.where,) if error.where else ()
                return Culprit("capture", REFUSED, error.what, sources=where), None
            except Exception as error:
                if first is None:
                    raise
                self.notes.append(f"sample {number} was left out: eager execution raises {error!r:.120}")
                continue
            first = first or sample
            self.tried += 1
            culprit = self.one(sample)
            if culprit is not None:
                return culprit, sample
            if not self.checks[-1].right:
                return None, None  # eager execution itself is not deterministic
        return None, first

    def sample(self, args: tuple, kwargs: dict[str, Any], upstream: Any, seed: int) -> Sample:
        self.progress(f"{self.name}: capture")
        capture = trace(self.fn, args, kwargs, options=self.options)
        try:
            return Sample(self.fn, args, kwargs, capture, upstream, seed)
        finally:
            capture.rewind()

    def one(self, sample: Sample) -> Culprit | None:
        """Algorithm 11.1 on one input. None where every prefix agrees."""
        self.inside = False
        reference = self._reference(sample)
        if reference is None:
            return None
        self.current = Run(self, sample, reference)
        for look in (self.current.eager, self.current.aot_eager, self.current.stax, self.current.held):
            culprit = look()
            if culprit is not None:
                return culprit
        return None

    def _reference(self, sample: Sample) -> Observation | None:
        self.progress(f"{self.name}: eager execution, twice")
        start = time.perf_counter()
        reference = sample.observe(self.fn)
        again = sample.observe(self.fn).against(reference)
        if again.agrees:
            return reference
        self.checks.append(
            Check("eager execution", "twice from one random state", (), "WRONG", "bit for bit", again,
                  time.perf_counter() - start, self.tried - 1)
        )  # fmt: skip
        self.notes.append(
            f"eager execution is not deterministic: run again from the same random state, {again.difference}"
        )
        return None

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(
        self, name: str, what: str, layers: Sequence[str], run: Callable[[], Agreement], held_to: str, note: str = ""
    ) -> Agreement | Exception:
        """Run a prefix and write down what came of it. What it raises is written down and returned."""
        self.progress(f"{self.name}: {what}")
        start = time.perf_counter()
        found: Agreement | Exception
        try:
            found = run()
            verdict = "WRONG" if not found.agrees else "equal bit for bit" if found.identical else "within the bound"
        except (BuildError, MissingDependencyError, OptionError):
            raise  # the user must act
        except Exception as error:
            found, verdict, note = error, "RAISED", f"{type(error).__name__}: {first_line(error)}"
        self.checks.append(
            Check(name, what, tuple(layers), verdict, held_to, found if isinstance(found, Agreement) else None,
                  time.perf_counter() - start, self.tried - 1, self.inside, note)
        )  # fmt: skip
        return found

    def changed_options(self) -> dict[str, Any]:
        """The options that are not the defaults, as :func:`staxlab.compile` takes them."""
        values = {f.name: getattr(self.options, f.name) for f in fields(Options) if f.name not in _BESIDE}
        return {name: value for name, value in values.items() if value != getattr(Options(), name)}

    def _note_check(self, name: str, layer: str, error: Exception) -> None:
        self.checks.append(
            Check(name, f"the backend {name}", (layer,), "RAISED", "bit for bit", None, 0.0, note=first_line(error))
        )
