"""Dispatch: the three levels, recompilation and its reasons, limits, threads, and what must not be kept alive."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import warnings
import weakref

import pytest
import torch

from staxlab import native
from staxlab.capture.tracer import trace
from staxlab.errors import GuardError, RecompileWarning
from staxlab.options import Options
from staxlab.specialize.dispatch import Dispatcher
from tests.specialize.regions import CapturedRegion, dispatcher


def double_or_shift(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def test_example_2_1_a_number_is_a_constant_a_tensor_an_input():
    compiled = dispatcher(lambda x, k: x * k)
    x = torch.randn(4)
    for k in (3, 4, 3):
        assert torch.equal(compiled(x, k), x * k)
    assert len(compiled.versions) == 2
    assert str(compiled.recompiles[0]) == "recompiling '<lambda>': version 1: k == 3 (got 4)"
    compiled.reset()
    for k in (3.0, 4.0):
        assert torch.equal(compiled(x, torch.tensor(k)), x * k)
    assert len(compiled.versions) == 1


def test_example_3_2_three_versions_and_the_reasons(capsys, monkeypatch):
    monkeypatch.setenv("STAXLAB_LOGS", "recompiles")
    compiled = dispatcher(double_or_shift)
    assert (compiled(torch.ones(4, 8)) == 2).all()
    assert (compiled(-2 * torch.ones(4, 8)) == -3).all()
    assert (compiled(torch.ones(6, 8)) == 2).all()
    assert len(compiled.versions) == 3
    first, second = map(str, compiled.recompiles)
    # The signature is the same, the gate's answer is not.
    assert first.startswith("recompiling 'double_or_shift': version 1: bool(%gt) at ") and "(got False)" in first
    assert "shape" not in first
    # Against version 1 only the shape differs, against version 2 the shape and the gate.
    one, two = second.split("; ")
    assert one.endswith("version 1: x.shape[0] == 4 (got 6)")
    assert two.startswith("version 2: x.shape[0] == 4 (got 6), bool(%gt) at ") and two.endswith("(got True)")
    assert capsys.readouterr().err.splitlines() == [f"[recompiles] {first}", f"[recompiles] {second}"]


def test_layouts_compile_once_each():
    compiled = dispatcher(lambda x: x * 2)
    base = torch.randn(8, 8)
    layouts = [base, base.t(), base[:1].expand(8, 8), torch.randn(8, 16)[:, ::2]]
    for _ in range(2):
        for x in layouts:
            assert torch.equal(compiled(x), x * 2)
    assert compiled.cache_info().compilations == 4
    assert compiled.cache_info().key == 0 or compiled.cache_info().hits == 4


def test_storage_offset_needs_no_version():
    compiled = dispatcher(lambda x: x * 2)
    base = torch.randn(10, 4)
    for i in range(5):
        assert torch.equal(compiled(base[i : i + 2]), base[i : i + 2] * 2)
    assert len(compiled.versions) == 1


def test_levels():
    w = torch.ones(8)
    compiled = dispatcher(lambda x: x * w)
    x = torch.randn(8)
    levels = []
    for arg in (x, x, x, x, torch.randn(8)):
        compiled(arg)
        levels.append(compiled.last_level)
    # Without the extension only the very same untouched tensors are served by the first level, from the third time on.
    assert levels == ([0, 2, 1, 1, 1] if native.available else [0, 2, 2, 1, 2])
    x.add_(1)  # another version of the same tensor
    compiled(x)
    assert compiled.last_level == (1 if native.available else 2)
    info = compiled.cache_info()
    assert (info.same_objects, info.compilations, info.versions, info.eager) == (4 if native.available else 1, 1, 1, 0)
    assert info.calls == 6 == compiled.versions[0].calls
    w.mul_(3)
    for _ in range(4):
        assert torch.equal(compiled(x), x * w)
    assert compiled.last_level == 1


def test_level_one_sees_what_a_version_counter_does_not():
    compiled = dispatcher(lambda x: x.t() * 2)
    x = torch.randn(4, 4)
    for _ in range(4):
        compiled(x)
    assert compiled.last_level == 1
    x.data = x.data.t()
    assert torch.equal(compiled(x), x.t() * 2) and compiled.last_level == 0
    for _ in range(3):
        compiled(x)
    x.data = torch.randn(2, 4)
    assert compiled(x).shape == (4, 2)
    for _ in range(4):
        compiled(x)
    x.requires_grad_()
    assert compiled(x).requires_grad


def test_level_one_sees_the_ambient_state():
    compiled = dispatcher(lambda x: x * 2)
    x = torch.randn(4, requires_grad=True)
    for _ in range(4):
        assert compiled(x).requires_grad
    with torch.no_grad():
        for _ in range(4):
            assert not compiled(x).requires_grad
    assert compiled(x).requires_grad
    assert len(compiled.versions) == 2


def test_regions_with_gates_replay_at_every_call():
    compiled = dispatcher(double_or_shift)
    x = torch.ones(4)
    for _ in range(4):
        assert torch.equal(compiled(x), double_or_shift(x))
    x.numpy()[:] = -1  # raises no version counter
    assert torch.equal(compiled(x), double_or_shift(x))


def test_gates_of_different_versions_with_equal_replays_run_once(monkeypatch):
    from staxlab.capture.gates import Replay

    compiled = dispatcher(double_or_shift)
    compiled(torch.ones(4))
    compiled(-torch.ones(4))
    runs = []
    original = Replay.evaluate
    monkeypatch.setattr(Replay, "evaluate", lambda self, inputs: runs.append(self) or original(self, inputs))
    compiled(-torch.ones(4))
    assert len(runs) == 1 and len(compiled.versions) == 2


def test_example_3_3_gate_moves_a_value_to_run_time():
    from staxlab.capture.gates import gate

    frozen = dispatcher(lambda x: x * int(x.sum()))
    dynamic = dispatcher(lambda x: x * gate(x.sum()))
    for compiled in (frozen, dynamic):
        assert compiled(torch.ones(2, 3))[0, 0] == 6
        assert compiled(2 * torch.ones(2, 3))[0, 0] == 24
    assert (len(frozen.versions), len(dynamic.versions)) == (2, 1)


def test_keyword_and_positional_arguments_share_a_version():
    compiled = dispatcher(lambda x, w, scale=1.0: x * w * scale)
    x, w = torch.randn(3), torch.randn(3)
    results = [
        compiled(x, w, 2.0),
        compiled(x, w=w, scale=2.0),
        compiled(scale=2.0, w=w, x=x),
        compiled(x, w, scale=2.0),
    ]
    assert all(torch.equal(r, results[0]) for r in results)
    assert len(compiled.versions) == 1
    assert torch.equal(compiled(x, w), x * w) and len(compiled.versions) == 2


def test_order_of_variadic_keywords_counts():
    compiled = dispatcher(lambda **named: torch.stack(list(named.values())))
    a, b = torch.zeros(2), torch.ones(2)
    assert torch.equal(compiled(a=a, b=b), torch.stack([a, b]))
    assert torch.equal(compiled(b=b, a=a), torch.stack([b, a]))


def test_wrong_arguments_raise_what_python_raises():
    compiled = dispatcher(lambda x: x * 2)
    with pytest.raises(TypeError, match="positional argument"):
        compiled()
    with pytest.raises(TypeError):
        compiled(torch.ones(2), torch.ones(2))
    assert not compiled.versions


def test_beyond_the_limit_calls_run_eagerly_with_one_warning():
    compiled = dispatcher(lambda x, k: x * k, max_versions=3)
    x = torch.randn(4)
    for k in range(3):
        compiled(x, k)
    with pytest.warns(RecompileWarning) as caught:
        for k in range(3, 8):
            assert torch.equal(compiled(x, k), x * k)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "3 versions" in message and "keeps changing: k." in message and "0-dimensional tensor" in message
    assert compiled.cache_info().eager == 5 and len(compiled.versions) == 3
    assert torch.equal(compiled(x, 1), x)  # known versions still serve
    assert compiled.cache_info().eager == 5


def test_the_remedy_fits_what_changes():
    gates = dispatcher(lambda x: x * int(x.sum()), max_versions=2)
    with pytest.warns(RecompileWarning, match="staxlab.gate"):
        for n in range(4):
            assert torch.equal(gates(torch.full((2,), float(n))), torch.full((2,), float(n)) * 2 * n)
    shapes = dispatcher(lambda x: x * 2, max_compilations=2)
    with pytest.warns(RecompileWarning, match="2 compilations.*dynamic=True"):
        for n in range(4):
            shapes(torch.zeros(n + 1))


def test_limits_hold_for_ten_thousand_scalars():
    compiled = dispatcher(lambda x, k: x + k)
    x = torch.zeros(1)
    with pytest.warns(RecompileWarning):
        assert all(compiled(x, float(k)).item() == k for k in range(2_000))
    assert compiled.cache_info().versions == 8 and compiled.cache_info().compilations == 8


def test_errors_of_the_function_leave_no_version():
    def fails(x):
        y = x + 1
        raise ValueError("mine")
        return y

    compiled = dispatcher(fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="mine") as caught:
            compiled(torch.zeros(2))
        assert caught.traceback[-1].name == "fails"
    assert not compiled.versions


def test_two_threads_compile_once():
    compilations = []

    def slow(fn, args, kwargs, key):
        compilations.append(threading.current_thread().name)
        time.sleep(0.05)
        return CapturedRegion(fn, args, kwargs)

    compiled = Dispatcher(lambda x: x * 2, slow)
    barrier = threading.Barrier(4)
    results = []

    def call():
        barrier.wait()
        results.append(compiled(torch.ones(3)))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all((r == 2).all() for r in results)
    assert len(compilations) == 1 and len(compiled.versions) == 1


def test_threads_trace_different_functions_at_once():
    errors = []

    def work(k):
        compiled = dispatcher(lambda x: (x * k).relu().sum(0))
        try:
            for n in range(2, 8):
                x = torch.randn(n, 3)
                assert torch.equal(compiled(x), (x * k).relu().sum(0))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_compiled_function_inside_another_is_inlined():
    shift = torch.ones(3)
    inner = dispatcher(lambda x: (x + shift).relu())
    outer = dispatcher(lambda x: inner(x) * 2)
    x = torch.randn(3)
    assert torch.equal(outer(x), (x + 1).relu() * 2)
    shift.mul_(2)
    assert torch.equal(outer(x), (x + 2).relu() * 2)
    assert not inner.versions
    assert [n.name for n in outer.versions[0].region.capture.graph.calls] == ["add", "relu", "mul"]


def test_under_another_mode_or_transform_the_function_runs_eagerly():
    compiled = dispatcher(lambda x: x.sin())
    x = torch.randn(3)
    assert torch.equal(torch.vmap(compiled)(x), x.sin())

    class Observer(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Observer():
        compiled(x)
    assert not compiled.versions
    with torch.device("cpu"):
        compiled(x)
    assert len(compiled.versions) == 1


def test_neither_arguments_nor_results_are_kept_alive():
    compiled = dispatcher(lambda x: x * 2)
    x = torch.randn(4)
    for _ in range(4):
        y = compiled(x)
    references = weakref.ref(x), weakref.ref(y)
    del x, y
    gc.collect()
    assert [r() for r in references] == [None, None]
    x = torch.randn(4)  # may well get the old id
    assert torch.equal(compiled(x), x * 2)


def test_calls_leave_no_garbage_cycles():
    """A cycle that holds a tensor would make memory grow until the collector happens to run."""
    compiled = dispatcher(lambda batch, y, k: batch["x"][0] * y * k)
    gc.collect()
    gc.disable()
    try:
        for call in range(4):  # the first one compiles
            x, y = torch.randn(3), torch.randn(3)
            result = compiled({"x": (x,)}, y=y, k=2)
            references = [weakref.ref(t) for t in (x, y, result)]
            del x, y, result
            assert [r() for r in references] == [None] * 3, f"call {call}"
    finally:
        gc.enable()


def test_sets_are_refused():
    with pytest.raises(GuardError, match="set"):
        dispatcher(lambda x, s: x)(torch.ones(2), {1})


def test_an_object_argument_is_known_by_identity_and_held_weakly():
    class Thing:
        def __init__(self, k):
            self.k = k

    compiled = dispatcher(lambda o, x: x * o.k)
    x = torch.ones(2)
    first = Thing(2)
    assert compiled(first, x)[0] == 2
    reference = weakref.ref(first)
    for k in range(3, 7):
        assert compiled(Thing(k), x)[0] == k
    assert len(compiled.versions) == 5
    compiled.reset()
    del first
    gc.collect()
    assert reference() is None


def test_tensor_nested_and_aliased_arguments():
    def fn(batch, pair):
        batch["x"].add_(1)
        return batch["x"] * pair[0] + pair[1]

    compiled = dispatcher(fn)
    for make in (lambda t: (t, torch.ones(3)), lambda t: (torch.ones(3), t), lambda t: (t, t)):
        t, u = torch.zeros(3), torch.zeros(3)
        assert torch.equal(compiled({"x": t}, make(t)), fn({"x": u}, make(u)))
        assert torch.equal(t, u)
    assert len(compiled.versions) == 3
    assert "memory overlap of inputs" in str(compiled.recompiles[0])


def test_specialize_compiles_without_running():
    compiled = dispatcher(lambda x: x * 2)
    version = compiled.specialize(torch.ones(2))
    assert version.region.calls == 0 and len(compiled.versions) == 1
    assert version.key == compiled.versions[0].key and all(guard.holds for guard in version.guards)
    compiled(torch.ones(2))
    assert version.region.calls == 1 and version.calls == 1


def test_a_compiled_method_is_bound():
    class Scaler(torch.nn.Module):
        def __init__(self, k):
            super().__init__()
            self.w = torch.nn.Parameter(torch.full((3,), float(k)))

        def forward(self, x):
            return self.scaled(x, by=2.0)

        scaled = dispatcher(lambda self, x, by: x * self.w * by)

    with torch.no_grad():
        two, three = Scaler(2), Scaler(3)
        x = torch.ones(3)
        for _ in range(2):
            assert two(x)[0] == 4 and three(x)[0] == 6
        two.w.add_(1)
        assert two(x)[0] == 6
    assert len(Scaler.scaled.versions) == 2 and len(two.scaled.versions) == 2


def test_a_compiled_module_is_still_the_module():
    module = torch.nn.Linear(3, 2)
    compiled = dispatcher(module)
    assert compiled.weight is module.weight and len(list(compiled.parameters())) == 2
    assert compiled.eval() is module and not module.training
    with pytest.raises(AttributeError):
        _ = compiled.nothing

    @dispatcher
    def documented(x):
        """What it does."""
        return x

    assert (documented.__name__, documented.__doc__) == ("documented", "What it does.")
    assert repr(documented) == "<compiled documented: 0 versions>"


def test_reset_forgets_everything():
    compiled = dispatcher(lambda x: x * 2)
    compiled(torch.ones(2))
    compiled(torch.ones(3))
    compiled.reset()
    assert compiled.cache_info() == type(compiled.cache_info())(0, 0, 0, 0, 0, 0)
    assert not compiled.versions and not compiled.recompiles


def test_inference_tensors_have_no_version_counter_and_still_work():
    compiled = dispatcher(lambda x: x * 2)
    with torch.inference_mode():
        x = torch.randn(3)
        for _ in range(4):
            assert torch.equal(compiled(x), x * 2)
    assert len(compiled.versions) == 1


def test_region_protocol_needs_no_tracer():
    class Capture:
        replay = shape_guard = None
        bind = staticmethod(lambda args, kwargs: list(args))
        rebuild = staticmethod(lambda flat, call=None: flat[0])

    class Region:
        capture = Capture()
        call = staticmethod(lambda flat: (flat[0] * 3,))

    keys = []
    compiled = Dispatcher(lambda x: x, lambda fn, args, kwargs, key: keys.append(key) or Region(), Options())
    assert compiled(torch.ones(2))[0] == 3
    assert keys[0] == compiled.versions[0].key


@pytest.mark.slow
def test_memory_is_flat_over_many_calls(repository):
    code = """
import resource, torch
from tests.specialize.regions import dispatcher
compiled = dispatcher(lambda x: x * 2 + 1)
def run(n):
    for _ in range(n):
        compiled(torch.zeros(8))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
first = run(20_000)
assert run(200_000) - first < 4096, "kilobytes grown"
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=repository)


def test_trace_is_reentrant_through_the_dispatcher_only():
    def nested(x):
        trace(lambda y: y, (x,))
        return x

    from staxlab.errors import CaptureError

    with pytest.raises(CaptureError, match="already being recorded"):
        dispatcher(nested)(torch.ones(2))


def test_the_limit_is_reported_at_the_users_line_for_every_function():
    import staxlab

    class Wrapped(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.forward = function

    def make():
        def f(x, k):
            return x * k

        return staxlab.compile(f, options={"max_versions": 1})

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for function in (make(), Wrapped(make()), make()):
            for k in range(3):
                function(torch.ones(2), k=k)
    assert [warning.filename for warning in seen] == [__file__] * 3
    assert len({warning.lineno for warning in seen}) == 1


def test_versions_and_reasons_are_short_lines():
    import staxlab

    compiled = staxlab.compile(lambda x, k: x * k)
    for shape, k in (((2, 4), 3), ((2, 4), 5), ((3,), 5)):
        compiled(torch.ones(shape), k)
    first, guards = compiled.versions[0], len(compiled.versions[0].guards)
    assert repr(first) == f"<version 1 for (x float32[2, 4], k = 3): 1 call, {guards} guards>"
    assert repr(compiled.recompiles[0]) == "<recompile of <lambda>: not version 1, k == 3 (got 5)>"
    assert "and 2 more" in repr(compiled.recompiles[1])
    assert max(len(repr(record)) for record in (*compiled.versions, *compiled.recompiles)) < 120
