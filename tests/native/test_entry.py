"""The call entry: served exactly when the key says so, whatever is done to tensors, state and surroundings."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab import native
from staxlab.specialize.ambient import read_ambient
from staxlab.specialize.entry import _multiplies_in_less
from tests.specialize.regions import dispatcher

ROOT = Path(__file__).resolve().parents[2]
needs_extension = pytest.mark.skipif(not native.available, reason=f"no extension: {native.reason}")


def affine(x):
    return x * 2 + 1


def warm(compiled, *args, calls=3):
    for _ in range(calls):
        compiled(*args)
    return compiled


def test_the_extension_is_built_wherever_there_is_a_compiler():
    """An installation without a compiler goes without the extension; this one has a compiler, so it must be here."""
    from staxlab.errors import BuildError
    from staxlab.runtime import toolchain

    if os.environ.get("STAXLAB_NATIVE") == "0":
        pytest.skip("turned off")
    try:
        toolchain.find()
    except BuildError:
        pytest.skip("no compiler")
    assert native.available, native.reason


@needs_extension
def test_fresh_tensors_are_served_by_the_first_level():
    compiled = warm(staxlab.compile(affine), torch.randn(8))
    for _ in range(5):
        x = torch.randn(8)
        assert torch.equal(compiled(x), affine(x)) and compiled.last_level == 1
    info = compiled.cache_info()
    assert info.calls == 8 == compiled.versions[0].calls and info.compilations == 1


def test_keyword_arguments_are_put_in_their_places_first():
    compiled = dispatcher(lambda x, scale=2, shift=1: x * scale + shift)
    x = torch.randn(4)
    for _ in range(4):
        for got, expected in (
            (compiled(x), x * 2 + 1),
            (compiled(x, shift=5), x * 2 + 5),
            (compiled(shift=5, x=x), x * 2 + 5),
            (compiled(x, 3), x * 3 + 1),
            (compiled(x, scale=3), x * 3 + 1),
        ):
            assert torch.equal(got, expected)
    assert len(compiled.versions) == 3
    if native.available:
        for _ in range(2):
            compiled(scale=3, x=torch.randn(4))
        assert compiled.last_level == 1


MUTATIONS = {
    "nothing": lambda x: x,
    "values": lambda x: x.add_(1),
    "transposed": lambda x: x.t(),
    "transposed in place": lambda x: x.t_(),
    "data swapped": lambda x: _swap(x, x.data.t()),
    "data of another shape": lambda x: _swap(x, torch.randn(2, 8)),
    "resized": lambda x: x.resize_(4, 2),
    "requires grad": lambda x: x.clone().requires_grad_(),
    "double": lambda x: x.double(),
    "half": lambda x: x.half(),
    "integers": lambda x: x.int(),
    "unsigned": lambda x: x.to(torch.uint8),
    "signed bytes": lambda x: x.to(torch.int8),
    "booleans": lambda x: x > 0,
    "bfloat16": lambda x: x.bfloat16(),
    "expanded": lambda x: x[:1].expand(4, 4),
    "sliced": lambda x: torch.randn(4, 8)[:, ::2],
    "offset": lambda x: torch.randn(8, 4)[4:],
    "flattened": lambda x: x.flatten(),
    "one more dimension": lambda x: x[None],
    "no elements": lambda x: torch.randn(0, 4),
    "a parameter": lambda x: torch.nn.Parameter(x.clone(), requires_grad=False),
    "negative bit": lambda x: torch.randn(4, 4, dtype=torch.cfloat).conj().imag,
    "imaginary part": lambda x: torch.randn(4, 4, dtype=torch.cfloat).imag,
    "complex": lambda x: torch.randn(4, 4, dtype=torch.cfloat),
    "conjugate bit": lambda x: torch.randn(4, 4, dtype=torch.cfloat).conj(),
    "inference tensor": lambda x: _inference(),
    "a number": lambda x: 3.0,
    "another number": lambda x: -0.0,
    "zero": lambda x: 0.0,
    "an integer": lambda x: 0,
    "a bool": lambda x: False,
}


def _swap(x, data):
    x.data = data
    return x


def _inference():
    with torch.inference_mode():
        return torch.randn(4, 4)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_change_of_one_thing_is_seen(name):
    for before in ("nothing", "imaginary part"):
        check_sequence([before, name, before], again=True)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(sorted(MUTATIONS)), min_size=1, max_size=7), st.booleans())
def test_what_is_served_is_what_the_key_allows(names, again):
    check_sequence(names, again)


def check_sequence(names, again):
    """Any sequence of tensors whose metadata changes in any way gives eager's values, and as many versions as there are
    different keys: one less would be a wrong hit, one more a needless compilation."""
    compiled = dispatcher(affine, max_versions=64)
    x = torch.randn(4, 4)
    keys = set()
    for name in names:
        if isinstance(x, torch.Tensor) and x.is_inference() and name in ("values", "resized", "data swapped"):
            continue
        start = (
            x if isinstance(x, torch.Tensor) and x.shape == (4, 4) and type(x) is torch.Tensor else torch.randn(4, 4)
        )
        if start.requires_grad or start.is_inference() or start.dtype is not torch.float32 or start.is_neg():
            start = torch.randn(4, 4)
        if name in ("transposed in place", "resized") and not start.is_contiguous():
            start = torch.randn(4, 4)
        if name == "values" and 0 in start.stride():  # PyTorch refuses to write into elements that are one
            start = torch.randn(4, 4)
        x = MUTATIONS[name](start)
        for _ in range(3 if again else 1):
            got, expected = compiled(x), affine(x)
            assert type(got) is type(expected)
            if isinstance(x, torch.Tensor):
                assert got.dtype == expected.dtype and got.stride() == expected.stride(), name
                assert torch.equal(got, expected) and got.requires_grad == expected.requires_grad
            else:
                assert got == expected
        keys.add(staxlab.specialize.signature.signature(x))
    assert len(compiled.versions) == len(keys)


@needs_extension
@pytest.mark.parametrize("values", [(1, 1.0, True), (0.0, -0.0), (float("nan"), 1.0), ("a", "b", None), (2**70, 2**71)])
def test_numbers_are_compared_as_the_key_compares_them(values):
    compiled = dispatcher(lambda x, k: (x * 2, k), max_versions=8)
    x = torch.randn(4)
    for _ in range(4):
        for value in values:
            result, k = compiled(x, value)
            assert type(k) is type(value) and repr(k) == repr(value)
    assert len(compiled.versions) == len(values)


def test_more_or_fewer_arguments_are_another_version():
    compiled = dispatcher(lambda *xs: sum(xs[1:], xs[0] * 2))
    x, y = torch.randn(4), torch.randn(4)
    for _ in range(4):
        assert torch.equal(compiled(x), x * 2)
        assert torch.equal(compiled(x, y), x * 2 + y)
        assert torch.equal(compiled(x, y, x + y), x * 2 + y + (x + y))
    assert len(compiled.versions) == 3


def test_tensors_that_share_memory_are_another_version():
    compiled = dispatcher(lambda x, y: x + y)
    a, b = torch.randn(8), torch.randn(8)
    warm(compiled, a, b)
    base = torch.randn(12)
    for x, y in ((a, b), (a, a), (base[:8], base[4:]), (base[:8], base[:8]), (b, a)):
        for _ in range(2):
            assert torch.equal(compiled(x, y), x + y)
    # Apart, one object, overlapping by four elements, and two objects over the same memory.
    assert len(compiled.versions) == 4


@needs_extension
def test_many_tensors_are_looked_at_for_overlap():
    compiled = dispatcher(lambda *xs: sum(xs[1:], xs[0]))
    xs = [torch.randn(4) for _ in range(40)]
    warm(compiled, *xs)
    assert compiled.last_level == 1
    compiled(*[torch.randn(4) for _ in range(40)])
    assert compiled.last_level == 1
    compiled(*xs[:-1], xs[7])
    assert compiled.last_level == 0 and len(compiled.versions) == 2


AMBIENT = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "double": lambda: _default_dtype(),
    "deterministic": lambda: _deterministic(),
    "device": lambda: torch.device("cpu"),
}


class _default_dtype:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *exc):
        torch.set_default_dtype(torch.float32)


class _deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *exc):
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", AMBIENT)
def test_the_ambient_state_is_looked_at(name):
    compiled = warm(dispatcher(lambda x: x @ x + torch.ones(3, 3)), torch.randn(3, 3))
    x = torch.randn(3, 3)
    for _ in range(3):
        with AMBIENT[name]():
            got, expected = compiled(x), x @ x + torch.ones(3, 3)
            assert got.dtype == expected.dtype and torch.equal(got, expected)
            assert got.is_inference() == expected.is_inference()
        assert compiled(x).dtype == torch.float32
    assert len(compiled.versions) == 2


@needs_extension
def test_shortcuts_answer_as_the_functions_they_stand_for():
    from staxlab.native import _READERS, _extension

    def agree(*changed):
        for k, answer in enumerate(_extension.ambient_shortcuts()):
            if answer is None:  # this PyTorch does not export it: Python is asked, which is only slower
                continue
            if k == 2:  # the default dtype, by PyTorch's number
                assert (answer == usual[k]) == (torch.get_default_dtype() is torch.float32)
            else:
                assert bool(answer) == bool(_READERS[k][0]()), _READERS[k][0]
            assert (answer != usual[k]) == (k in changed), (k, changed)

    usual = _extension.ambient_shortcuts()
    agree()
    with torch.no_grad():
        agree(0)
    with torch.inference_mode():
        agree(0, 1)
    with AMBIENT["double"]():
        agree(2)
    with AMBIENT["deterministic"]():
        agree(3)
    with torch.autocast("cpu"):
        agree(4)
    with torch.overrides.TorchFunctionMode():
        agree(5)
    with torch.utils._python_dispatch.TorchDispatchMode():
        agree(6)
    torch.func.vmap(lambda x: (agree(7), x)[1])(torch.ones(2))
    torch.func.grad(lambda x: (agree(7), x)[1])(torch.tensor(1.0))
    torch.jit.trace(lambda x: (agree(8), x + 1)[1], (torch.ones(2),), check_trace=False)
    agree()


def test_what_wants_to_see_every_operation_sees_it():
    from torch.autograd import forward_ad

    compiled = warm(staxlab.compile(affine), torch.randn(4))
    x = torch.randn(4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(4))
        assert torch.equal(forward_ad.unpack_dual(compiled(dual)).tangent, torch.full((4,), 2.0))
    assert torch.equal(torch.func.vmap(compiled)(torch.ones(3, 4)), torch.full((3, 4), 3.0))
    assert torch.equal(torch.func.grad(lambda x: compiled(x).sum())(x), torch.full((4,), 2.0))
    traced = torch.jit.trace(compiled, (x,))
    assert torch.equal(traced(x + 1), affine(x + 1))


@needs_extension
def test_free_variables_are_read_anew():
    scale, flags = torch.randn(4), {"on": True}
    cell = [torch.randn(4)]

    def f(x):
        return x * scale + cell[0] if flags["on"] else x

    compiled = warm(dispatcher(f), torch.randn(4))
    x = torch.randn(4)

    def agrees(level):
        assert torch.equal(compiled(x), f(x)) and compiled.last_level == level

    agrees(1)
    scale.mul_(2)
    agrees(1)
    scale = torch.randn(4)
    agrees(1)
    cell[0] = torch.randn(4)
    agrees(1)
    scale = torch.randn(1)  # another shape, another program
    agrees(0)
    flags["on"] = False
    agrees(0)
    flags["on"] = True
    assert torch.equal(compiled(x), f(x))
    cell.append(torch.randn(4))
    assert torch.equal(compiled(x), f(x))
    scale = cell[0]  # now two free variables are one tensor
    assert torch.equal(compiled(x), f(x)) and compiled.last_level == 0


def test_a_free_tensor_that_only_decides_is_looked_at():
    """The graph need not use a free tensor for the function to have asked about it."""
    holder = {"w": torch.ones(3)}

    def f(x):
        w = holder["w"]
        if w is None:
            return x - 1
        if isinstance(w, float):
            return x * w
        if w.dtype == torch.float64:
            return x * 10
        return x * w if w.shape[0] == 3 else x + 7

    compiled = staxlab.compile(f)
    x = torch.randn(3)
    values = [torch.ones(3), None, torch.full((3,), 5.0), 2.0, torch.ones(4), None, torch.ones(3).double(), 3.0,
              torch.ones(5), torch.full((3,), 4.0), torch.ones(4)]  # fmt: skip
    for _ in range(2):
        for value in values:
            holder["w"] = value
            for _ in range(3):
                assert torch.equal(compiled(x), f(x)), value
    holder["w"] = torch.ones(4)
    unused = holder["w"]
    for _ in range(3):
        compiled(x)
    if native.available:
        assert compiled.last_level == 1
    assert torch.equal(compiled(unused[:3]), f(unused[:3]))  # an argument in the memory of a tensor that is not used


@needs_extension
def test_a_module_is_served_by_the_first_level():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Dropout(0.5)).eval()
    compiled = staxlab.compile(model)
    with torch.no_grad():
        warm(compiled, torch.randn(2, 4))
        assert compiled.last_level == 1
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), model(x))
        model[0].weight.data = torch.randn(4, 4)
        torch.testing.assert_close(compiled(x), model(x))
        assert compiled.last_level == 1
        model[0].weight = torch.nn.Parameter(torch.randn(4, 4))
        torch.testing.assert_close(compiled(x), model(x))
        model.train()
        torch.manual_seed(0)
        got = compiled(x)
        assert compiled.last_level == 0
        torch.manual_seed(0)
        torch.testing.assert_close(got, model(x))


class Custom(torch.Tensor):
    pass


@needs_extension
def test_a_subclass_is_not_taken_for_a_tensor():
    compiled = warm(dispatcher(affine), torch.ones(4))
    with pytest.raises(staxlab.CaptureError, match="tensor subclass"):
        compiled(torch.ones(4).as_subclass(Custom))


@needs_extension
def test_a_gate_is_replayed_once_for_all_versions_that_share_it(monkeypatch):
    from staxlab.capture.gates import Replay

    seen = []
    original = Replay.evaluate

    def f(x):
        return x * 2 if x.sum() > 0 else x - 1

    compiled = dispatcher(f)
    x = torch.ones(4)
    for _ in range(3):
        for sign in (1, -1):
            assert torch.equal(compiled(sign * x), f(sign * x))
    assert compiled.last_level == 1 and len(compiled.versions) == 2
    assert compiled.versions[0].replay is compiled.versions[1].replay
    monkeypatch.setattr(Replay, "evaluate", lambda self, inputs: (seen.append(1), original(self, inputs))[1])
    for sign in (1, -1, 1, -1):
        seen.clear()
        assert torch.equal(compiled(sign * x), f(sign * x)) and compiled.last_level == 1
        assert len(seen) == 1


def test_an_error_of_the_function_is_the_callers():
    class Region:
        def __init__(self, capture):
            self.capture = capture

        def call(self, flat):
            raise KeyError("from inside")

    from staxlab.capture.tracer import trace
    from staxlab.specialize.dispatch import Dispatcher

    compiled = Dispatcher(affine, lambda f, args, kwargs, key: Region(trace(f, args, kwargs)))
    for _ in range(4):
        with pytest.raises(KeyError, match="from inside"):
            compiled(torch.ones(3))


def test_nothing_is_kept_alive_and_nothing_is_counted_wrongly():
    import weakref

    compiled = staxlab.compile(affine)
    x = torch.randn(8)
    warm(compiled, x)
    counted = [None, True, False, torch.float32, affine]
    before = [sys.getrefcount(thing) for thing in counted]
    for _ in range(2000):
        compiled(x)
    after = [sys.getrefcount(thing) for thing in counted]
    assert all(abs(b - a) < 500 for a, b in zip(before, after, strict=True))
    result = weakref.ref(compiled(x))
    assert result() is None
    gone = weakref.ref(x)
    del x
    assert gone() is None
    compiled_gone = weakref.ref(compiled)
    del compiled
    gc.collect()
    assert compiled_gone() is None


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


ROUNDS = 5


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc here")
@pytest.mark.parametrize("calls", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_memory_stays_flat_over_fresh_tensors(calls):
    compiled = staxlab.compile(affine)
    warm(compiled, torch.randn(8))
    growth = []
    for _ in range(ROUNDS):
        start = _resident()
        for _ in range(calls // ROUNDS):
            compiled(torch.ones(8))
        growth.append(_resident() - start)
    # What other tests of this process left may grow or be returned meanwhile; a leak shows in every round.
    assert min(growth) < calls // ROUNDS, growth  # bytes: less than one for each call
    assert compiled.cache_info().compilations == 1


def test_ten_thousand_numbers_stay_within_the_limits():
    compiled = dispatcher(lambda x, k: x * k)
    x = torch.ones(2)
    with pytest.warns(staxlab.RecompileWarning, match="0-dimensional tensor"):
        for k in range(10_000):
            assert compiled(x, k)[0] == k
    info = compiled.cache_info()
    assert (info.versions, info.compilations, info.eager) == (8, 8, 9_992)


def test_threads_may_call_at_once():
    compiled = staxlab.compile(lambda x: torch.relu(x) * 2 + 1)
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for size in (8, 64, 40_000):
            for _ in range(30):
                x = torch.randn(size, generator=generator)
                if not torch.equal(compiled(x), torch.relu(x) * 2 + 1):
                    wrong.append(size)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(compiled.versions) == 3


def test_reset_from_inside_a_call():
    holder = {}

    def f(x):
        return x + 1

    compiled = holder["compiled"] = warm(dispatcher(f), torch.ones(3))
    region = compiled.versions[0].region
    plain = region.call

    def resetting(flat):
        compiled.reset()
        return plain(flat)

    compiled.reset()
    compiled = dispatcher(f)
    warm(compiled, torch.ones(3))
    for version in compiled.versions:
        version.region.call = resetting
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


@needs_extension
def test_an_extension_of_another_make_is_not_used(monkeypatch):
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    assert native._connect() == (None, native._connect()[1]) and "older version" in native._connect()[1]


def test_without_the_extension_everything_is_the_same_only_slower():
    """The dispatcher's own tests, with the extension turned off."""
    environment = {**os.environ, "STAXLAB_NATIVE": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/specialize/test_dispatch.py",
               "tests/native/test_entry.py", "-k", "not without_the_extension and not is_served_is_what"]  # fmt: skip
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:]
    assert " passed" in result.stdout


def test_the_ambient_state_has_no_field_the_entry_does_not_look_at():
    """Whoever adds a field to the ambient state must add it to `native/ambient.c` as well. The precision of products
    is not there: a version that multiplies in less than the full one has no line in C (tests below)."""
    assert read_ambient()._fields == (
        "grad_mode", "inference_mode", "autocast", "default_dtype", "deterministic", "default_device",
        "product_precision",
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_a_version_that_multiplies_in_less_than_full_precision_has_no_line_in_c(precision):
    def region(device, trains, *precisions):
        kernels = [SimpleNamespace(launch={"precision": one}) for one in precisions]
        return SimpleNamespace(device=SimpleNamespace(is_gpu=device), trains=trains, compiled_kernels=kernels)

    less = precision == "tf32"
    assert _multiplies_in_less(region(True, False, "ieee", precision)) is less
    assert _multiplies_in_less(region(True, True)) is True  # its backward half is not compiled yet
    assert not _multiplies_in_less(region(False, True, precision)) and not _multiplies_in_less(SimpleNamespace())
