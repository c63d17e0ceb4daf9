"""Every function of the corpus, captured, against itself run eagerly: results, effects and draws, bit for bit."""

from __future__ import annotations

import collections
import copy
import dataclasses
import re
import warnings

import pytest
import torch

import staxlab
from staxlab.capture.tracer import trace
from staxlab.errors import CaptureError, GuardError
from staxlab.options import Options
from staxlab.specialize.dispatch import Dispatcher
from staxlab.transform import transform
from tests.capture.corpus import CASES, Case

CALLS = 6


class CapturedRegion:
    """The shortest possible backend: run the captured graph (or, with ``rewrite``, the transformed one)."""

    def __init__(self, fn, args, kwargs, rewrite: bool):
        self.capture = trace(fn, args, kwargs)
        self.module = transform(self.capture).final if rewrite else self.capture.module
        self.capture.release()

    def call(self, flat):
        return self.capture.flat_results(self.module(*flat))


def compiled(fn, rewrite: bool) -> Dispatcher:
    options = Options(max_versions=64, max_compilations=64)
    return Dispatcher(fn, lambda f, args, kwargs, key: CapturedRegion(f, args, kwargs, rewrite), options)


def same(a, b) -> bool:
    """Bit for bit, with equal types, dtypes, shapes and requires_grad."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and (a.dtype, a.shape, a.requires_grad, a.device) == (b.dtype, b.shape, b.requires_grad, b.device)
            and torch.equal(_bits(a), _bits(b))
        )
    if type(a) is not type(b):
        # Cases define classes inside factories: twins have equal but distinct ones.
        if type(a).__qualname__ != type(b).__qualname__:
            return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, torch.nn.Module):
        return same(dict(a.state_dict()), dict(b.state_dict()))
    if isinstance(a, torch.Generator):
        return torch.equal(a.get_state(), b.get_state())
    return a == b or (a != a and b != b)


def _bits(t: torch.Tensor) -> torch.Tensor:
    t = (t if t.layout is torch.strided else t.to_dense()).detach().contiguous()
    if t.is_complex():
        t = torch.view_as_real(t)
    if t.is_floating_point():
        return t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])
    return t


def twins(case: Case):
    """Two equal callables, and argument tuples that are equal twins as well (aliasing included)."""
    torch.manual_seed(7)
    eager = case.make()
    torch.manual_seed(7)
    captured = case.make()
    return eager, captured


def _copies(args, kwargs):
    return copy.deepcopy((args, kwargs))


def run(case: Case, rewrite: bool = False, backend: str | None = None) -> Dispatcher:
    eager, captured = twins(case)
    if backend is None:
        dispatcher = compiled(captured, rewrite)
    else:
        dispatcher = staxlab.compile(captured, backend=backend, options={"max_versions": 64, "max_compilations": 64})
    with torch.set_grad_enabled(case.grad), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(11)
        first = case.args(), case.kwargs()
        for call in range(CALLS):
            # Objects are keyed by identity: keep those of the first call, refresh the tensors.
            args, kwargs = first if call == 0 else (_refreshed(first[0], case.args()), case.kwargs())
            other_args, other_kwargs = _copies(args, kwargs)
            torch.manual_seed(100 + call)
            expected = eager(*other_args, **other_kwargs)
            after_eager = torch.rand(3)
            torch.manual_seed(100 + call)
            result = dispatcher(*args, **kwargs)
            after_captured = torch.rand(3)
            assert same(result, expected), f"call {call}: {result} is not {expected}"
            assert same((args, kwargs), (other_args, other_kwargs)), f"call {call}: effects on arguments differ"
            assert torch.equal(after_eager, after_captured), f"call {call}: random generator in another state"
            assert _same_state(eager, captured), f"call {call}: state differs"
    return dispatcher


def _refreshed(old, new):
    return tuple(o if isinstance(o, (torch.nn.Module, torch.Generator)) else n for o, n in zip(old, new, strict=True))


def _same_state(eager, captured) -> bool:
    a, b = (getattr(f, "__self__", f) for f in (eager, captured))
    return same(a, b) if isinstance(a, torch.nn.Module) else True


GOOD = [case for case in CASES if case.refused is None]
REFUSED = [case for case in CASES if case.refused is not None]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_captured_graph_is_eager_bit_for_bit(case):
    dispatcher = run(case)
    assert dispatcher.cache_info().eager == 0
    if case.versions is not None:
        assert len(dispatcher.versions) == case.versions


# Written-out composites round as their formulas do, in float32 within a few units in the last place.
DECOMPOSED = {"activations"}


@pytest.mark.parametrize("case", [c for c in GOOD if c.name not in DECOMPOSED], ids=lambda case: case.name)
def test_transformed_graph_is_eager_bit_for_bit(case):
    run(case, rewrite=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", [c for c in GOOD if c.name not in DECOMPOSED], ids=lambda case: case.name)
def test_backends_are_eager_bit_for_bit(case, backend):
    if (case.name, backend) == ("losses", "aot_eager"):
        pytest.skip("losses are taken apart below this stage: tests/transform/test_bit_identical.py has their bounds")
    run(case, backend=backend)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refusal_names_the_line_and_changes_nothing(case):
    fn = case.make()
    args, kwargs = case.args(), case.kwargs()
    plain = not any(hasattr(a, "__next__") or isinstance(a, set) for a in args)
    before = _copies(args, kwargs) if plain else None
    state = torch.get_rng_state()
    with torch.set_grad_enabled(case.grad), pytest.raises((CaptureError, GuardError)) as caught:
        compiled(fn, False)(*args, **kwargs)
    error = caught.value
    assert re.search(case.refused, str(error)), str(error)
    assert error.remedy
    if isinstance(error, CaptureError):
        assert error.where is not None and error.where.file.endswith("corpus.py"), error
    if plain:
        assert same((args, kwargs), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_corpus_is_large_enough():
    outcomes = collections.Counter("refused" if case.refused else "captured" for case in CASES)
    assert outcomes["captured"] >= 60 and len(CASES) >= 120, outcomes
    assert len({case.name for case in CASES}) == len(CASES)
