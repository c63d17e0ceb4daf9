"""A region is entered once per call, whatever it consists of, and does what its Python wrapper says."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab import native

pytestmark = pytest.mark.skipif(not native.available, reason=f"no extension: {native.reason}")


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def twice(x):
    y = x + 1
    return y, y


def several_views(x):
    y = x + 1
    return y.t(), y[1:], y, y[:, ::2].t()


def constants(x):
    return x + 1, 5, None, "text", [1, 2.5], True


def in_the_middle(x):
    return (torch.sort(x * 2, dim=-1)[0] - 1).sum(0)


def many_results(x):
    parts = torch.linalg.qr(x * 1.5)
    values, places = (x + 1).sort(0)
    return parts[0] + 1, parts[1], places, values


def list_of_tensors(x):
    return torch.cat([torch.linalg.inv(x @ x.t() + 5 * torch.eye(len(x))), (x + 1) @ x.t()], 1) * 2


def inputs_returned(x):
    return x, x.t(), x[:], x + 1


def written(x):
    x.add_(1)
    y = x * 2
    x.mul_(3)
    return y, x[1:]


def scattered(x):
    at = (x > 0).long()
    return torch.zeros_like(x).scatter_add(0, at, x), (x + 1).index_fill(0, at[0, :2], 7.0)


def view_to_an_operator(x):
    y = x * 2 + 1
    return torch.sort(y.t()[:3])[0], y


def nothing_to_do(x):
    return x[:0] + 1, x[:, :0].sum(1), torch.cat([x[:0], x + 1])


def double_precision(x):
    return (x.double() + 1).sum(), x.half() * 2, (x > 0) & (x < 1)


def statistics(x):
    return F.layer_norm(x, x.shape[-1:]), F.softmax(x, 0), x.argmax(1)


def subscripts(x):
    return x[x.argmax(0)] + 1, x.gather(0, x.argmin(0, keepdim=True))


def no_results(x):
    x.copy_(x * 2)


FUNCTIONS = (
    twice, several_views, constants, in_the_middle, many_results, list_of_tensors, inputs_returned, written, scattered,
    view_to_an_operator, nothing_to_do, double_precision, statistics, subscripts, no_results,
)  # fmt: skip
INPUTS = {
    "square": lambda: torch.randn(6, 6),
    "a view with an offset": lambda: torch.randn(20, 9)[3:9, 2:8],
    "turned": lambda: torch.randn(6, 6).t(),
    "large": lambda: torch.randn(300, 300),
}


def described(result, inputs):
    """All that can be told about a result without its address."""
    if not isinstance(result, torch.Tensor):
        return type(result), result
    identity = [result is x for x in inputs]
    shared = [result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in inputs]
    return (
        identity, shared, tuple(result.shape), result.stride(), result.storage_offset(), result.dtype,
        result._is_view(), result.requires_grad, result.is_contiguous(),
    )  # fmt: skip


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_program_does_what_the_wrapper_says(function, kind):
    torch.manual_seed(0)
    x = INPUTS[kind]()
    compilation = staxlab.explain(function, x)
    artifact = compilation.artifact
    assert artifact.interpreted == "" and type(artifact.call) is native.Program
    found = []
    extra = [torch.eye(len(x))] if function is list_of_tensors and len(compilation.loops.inputs) > 1 else []
    for call in (artifact.call, artifact.wrapper_call):
        storage = x.untyped_storage().clone()
        own = torch.empty(0).set_(storage, x.storage_offset(), x.shape, x.stride())
        for _ in range(2):  # the second call finds used memory in the pool
            inputs = [own, *extra]
            results = call(inputs)
        found.append((results, inputs))
    (first, own), (second, others) = found
    assert type(first) is tuple and len(first) == len(second)
    assert torch.equal(own[0], others[0]) and own[0]._version == others[0]._version
    for a, b in zip(first, second, strict=True):
        assert described(a, own) == described(b, others)
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b) or (a.isnan() == b.isnan()).all() and torch.equal(a.nan_to_num(), b.nan_to_num())
    assert sharing(first) == sharing(second)


def sharing(results):
    """Which results are one object, and which share a storage."""
    tensors = [r for r in results if isinstance(r, torch.Tensor)]
    ends = [t.untyped_storage().data_ptr() if t.numel() else -k for k, t in enumerate(tensors)]
    same = [(i, j) for i, a in enumerate(tensors) for j, b in enumerate(tensors[:i]) if a is b]
    return same, [(i, j) for i, a in enumerate(ends) for j, b in enumerate(ends[:i]) if a == b]


def test_a_wrong_subscript_is_the_same_error_both_ways():
    x, at = torch.randn(8), torch.tensor([1, 9])
    artifact = staxlab.explain(lambda x, i: x[i] + 1, x, torch.tensor([1, 2])).artifact
    said = []
    for call in (artifact.call, artifact.wrapper_call):
        with pytest.raises(staxlab.SubscriptError) as caught:
            call([x, at])
        said.append(str(caught.value))
    assert said[0] == said[1] and "index 9 is out of bounds for a dimension of size 8" in said[0]


def test_a_compiled_function_explains_a_wrong_subscript_in_either_way_of_calling():
    compiled = staxlab.compile(lambda x, i: x[i] + 1)
    x = torch.randn(8)
    for _ in range(3):
        compiled(x, torch.tensor([1, 2]))
    assert compiled.last_level == 1
    for call in (compiled, compiled._dispatch):
        with pytest.raises(staxlab.SubscriptError, match="index 9 at position") as caught:
            call(x, torch.tensor([1, 9]))
        assert "test_program.py" in str(caught.value)
        assert isinstance(caught.value.__cause__, staxlab.SubscriptError)
    assert torch.equal(compiled(x, torch.tensor([3, 0])), x[[3, 0]] + 1)


def test_an_operator_that_delivers_another_shape_is_refused_both_ways():
    artifact = staxlab.explain(lambda x: torch.sort(x)[0] + 1, torch.randn(4, 4)).artifact
    said = []
    for call in (artifact.call, artifact.wrapper_call):
        with pytest.raises(staxlab.CodegenError) as caught:
            call([torch.randn(4, 5)])
        said.append(str(caught.value))
    assert said[0] == said[1] and "shape" in said[0]


def test_an_operator_that_delivers_other_strides_is_copied_both_ways():
    x = torch.randn(4, 6)
    artifact = staxlab.explain(lambda x: torch.sort(x, 0)[0] + 1, x).artifact
    other = x.t().contiguous().t()
    for call in (artifact.call, artifact.wrapper_call):
        assert torch.equal(call([other])[0], torch.sort(x, 0)[0] + 1)


# -- one entry ---------------------------------------------------------------------------------------------------------


def entries_of(compiled, *args):
    """What one call costs in entries, kernels and operators, and the Python functions that ran in it."""
    seen = []

    def watch(frame, event, _):
        if event == "call":
            seen.append(frame.f_code.co_qualname)

    before = native.counters()
    sys.setprofile(watch)
    try:
        compiled(*args)
    finally:
        sys.setprofile(None)
    after = native.counters()
    # In a checked run kernels are Python functions that place their arguments (tests/sanitized.py).
    python = [] if os.environ.get("STAXLAB_SANITIZE") else seen
    return {name: after[name] - before[name] for name in after}, python


def chain(count, between=None):
    """``count`` kernels of which each reads all of the one before, with an operator of PyTorch after each or none."""

    def f(x):
        for _ in range(count):
            x = (x - x.sum(0)) / 3
            if between is not None:
                x = between(x)
        return x

    return f


@pytest.mark.parametrize("count, operators", [(1, 0), (5, 0), (20, 0), (3, 3)])
def test_one_entry_and_no_python_per_call(count, operators):
    between = (lambda x: torch.sort(x)[0]) if operators else None
    compiled = staxlab.compile(chain(count, between), options={"fuse": False})
    x = torch.randn(16, 16)
    for _ in range(3):
        compiled(x)
    assert compiled.last_level == 1
    compilation = compiled.versions[0].compilation
    kernels = sum(k.language == "cpp" for k in compilation.kernels)
    assert kernels >= count and len(compilation.kernels) - kernels == operators
    counted, python = entries_of(compiled, x)
    assert counted == {"entries": 1, "kernels": kernels, "operators": operators, "views": 0}
    assert python == []


@pytest.mark.parametrize(
    "function",
    [twice, several_views, in_the_middle, written, scattered, subscripts, nothing_to_do],
)
def test_what_needed_the_interpreter_before_is_one_entry(function):
    compiled = staxlab.compile(function)
    x = torch.randn(12, 12)
    for _ in range(3):
        compiled(x)
    counted, python = entries_of(compiled, x)
    assert counted["entries"] == 1
    assert not [name for name in python if "wrapper" in name or name in ("call", "launch", "in_layout")], python


def test_constants_of_a_region_are_held_by_its_program():
    table = torch.tensor([1.0, 2.0, 3.0, 4.0])
    compiled = staxlab.compile(lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + x.sort()[0])
    x = torch.randn(4)
    for _ in range(4):
        torch.testing.assert_close(compiled(x), x * table + x.sort()[0])
    assert entries_of(compiled, x) == ({"entries": 1, "kernels": 1, "operators": 1, "views": 0}, [])


def test_autocast_stays_outside():
    compiled = staxlab.compile(lambda x: torch.sort(x @ x)[0] + 1)
    x = torch.randn(16, 16)
    for _ in range(3):
        plain = compiled(x)
    with torch.autocast("cpu", torch.bfloat16):
        inside = compiled(x)
        expected = torch.sort(x @ x)[0] + 1
    assert inside.dtype == expected.dtype
    torch.testing.assert_close(inside, expected, rtol=2e-2, atol=2e-2)
    assert torch.equal(compiled(x), plain)


# -- references --------------------------------------------------------------------------------------------------------


def tensors_alive():
    gc.collect()
    return sum(1 for o in gc.get_objects() if type(o) is torch.Tensor), native.pool_statistics()["lent_bytes"]


def test_nothing_is_left_behind_over_ten_thousand_calls():
    compiled = staxlab.compile(lambda x: ((x + 1).t(), torch.sort(x * 2)[0] + 1, x, 3))
    x = torch.randn(8, 8)
    for _ in range(3):
        compiled(x)
    before, references = tensors_alive(), sys.getrefcount(x)
    for _ in range(10_000):
        compiled(x)
    assert tensors_alive() == before and sys.getrefcount(x) == references


def test_nothing_is_left_behind_when_an_operator_raises_in_the_middle():
    def f(x, i):
        y = (x + 1).sort()[0] * 2
        z = torch.linalg.cholesky(y @ y.t() - 1e3 * i)  # not positive definite: raises
        return z + y, y.t()

    artifact = staxlab.explain(f, torch.randn(8, 8), torch.zeros(8, 8)).artifact
    x, i = torch.randn(8, 8), torch.eye(8)
    with pytest.raises(torch.linalg.LinAlgError):
        artifact.call([x, i])
    inputs = [x, i]
    before, references = tensors_alive(), (sys.getrefcount(x), sys.getrefcount(i))
    for _ in range(10_000):
        try:
            artifact.call(inputs)
        except torch.linalg.LinAlgError:
            pass
    assert tensors_alive() == before and (sys.getrefcount(x), sys.getrefcount(i)) == references
    assert torch.equal(artifact.call([x, 0 * i - 1])[1], artifact.wrapper_call([x, 0 * i - 1])[1])


def test_nothing_is_left_behind_when_a_kernel_reports_a_failure():
    artifact = staxlab.explain(lambda x, i: (x + 1).sort()[0][i] * 2, torch.randn(9), torch.zeros(3).long()).artifact
    x = torch.randn(9)
    inputs = [x, torch.tensor([1, 2, 99])]
    with pytest.raises(staxlab.SubscriptError):
        artifact.call(inputs)
    before, references = tensors_alive(), sys.getrefcount(x)
    for _ in range(10_000):
        try:
            artifact.call(inputs)
        except staxlab.SubscriptError:
            pass
    assert tensors_alive() == before and sys.getrefcount(x) == references


def test_a_program_and_what_it_refers_to_can_be_collected():
    import weakref

    def make():
        compiled = staxlab.compile(lambda x: torch.sort(x + torch.tensor(2.0))[0])
        compiled(torch.randn(4))
        executor = compiled.versions[0].compilation.executor
        assert type(executor) is native.Program
        compiled.itself = executor  # a cycle through the dispatcher
        return weakref.ref(compiled)

    reference = make()
    gc.collect()
    assert reference() is None


# -- by hand -----------------------------------------------------------------------------------------------------------

OWN, ARENA, SHARED, MADE, DELIVERED = range(5)
CONSTANT, TENSOR, VIEW, SEQUENCE = range(4)
KERNEL, OPERATOR, NOTHING = range(3)
NO_ARENA = (0, 0, 0)
FLOATS = (16, (2, 32), (4,), (1,))  # four of them


def program(inputs, values, steps, outputs, arena=NO_ARENA, keep=None):
    from staxlab.codegen.wrapper import in_layout

    return native.Program(inputs, arena, values, steps, outputs, in_layout, keep)


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def test_programs_refuse_what_does_not_fit():
    own, arena = (OWN, FLOATS, 0, 0, None), (ARENA, FLOATS, 0, 0, None)
    for values, steps, outputs, block, match in (
        ((), ((KERNEL, (), (), 1, (0, 1), False, None),), ((TENSOR, 0),), NO_ARENA, "no value 1"),
        ((), ((KERNEL, (), (), 1, (), False, None),), ((TENSOR, 0),), NO_ARENA, "0 arguments"),
        ((), ((KERNEL, (), (), 1, (0,) * 1025, False, None),), ((TENSOR, 0),), NO_ARENA, "1025 arguments"),
        (((OWN, (4, (2, 32), (1,), ()), 0, 0, None),), (), (), NO_ARENA, "fit together"),
        ((own, (SHARED, (32, (2, 32), (8,), (1,)), 0, 1, None)), (), (), NO_ARENA, "does not fit"),
        ((own, (SHARED, FLOATS, 0, 1, None), (SHARED, FLOATS, 0, 2, None)), (), (), NO_ARENA, "does not fit"),
        (((SHARED, FLOATS, 0, 9, None),), (), (), NO_ARENA, "no such memory"),
        (((ARENA, FLOATS, 64, 0, None),), ((NOTHING, (), ()),), (), (64, 0, 0), "no such memory"),
        ((), ((NOTHING, (), ()),), (), (64, 0, 1), "no arena"),
        (((7, None, 0, 0, None),), (), (), NO_ARENA, "no such memory"),
        (((DELIVERED, None, 0, 0, None),), ((NOTHING, (1,), ()),), (), NO_ARENA, "cannot be taken"),
        ((own,), ((OPERATOR, (), (), len, (), None, ((-1, 1, FLOATS, (4,), (1,)),)),), (), NO_ARENA, "cannot deliver"),
        ((), ((OPERATOR, (), (), len, (), ("x",), ()),), (), NO_ARENA, "more keywords"),
        ((), ((9, (), ()),), (), NO_ARENA, "no such kind of step"),
        ((), (), ((9, 1),), NO_ARENA, "no such kind of template"),
        ((), (), ((SEQUENCE, True, ((TENSOR, 5),)),), NO_ARENA, "no value 5"),
        ((own,), (), ((TENSOR, 1),), NO_ARENA, "not there"),
        ((own,), ((NOTHING, (1,), (1,)),), ((VIEW, 1, (2,), (1,), 0),), NO_ARENA, "not there"),
        ((own,), ((NOTHING, (1,), ()), (NOTHING, (1,), ())), (), NO_ARENA, "while it is there"),
        ((own,), ((KERNEL, (), (), 1, (1,), False, None),), (), NO_ARENA, "not there"),
        ((own, (SHARED, FLOATS, 0, 1, None)), ((NOTHING, (2,), ()),), (), NO_ARENA, "value 1 is read where"),
        ((arena,), ((NOTHING, (1,), ()),), ((SEQUENCE, False, ((TENSOR, 1),)),), (64, 0, 0), "no arena"),
        ((arena,), ((NOTHING, (1,), ()), (NOTHING, (), ())), (), (64, 1, 1), "no arena"),
    ):
        with pytest.raises(ValueError, match=match):
            program(1, values, steps, outputs, block)
    same = program(1, (), (), ((TENSOR, 0),))
    x = torch.ones(2)
    assert same([x])[0] is x
    with pytest.raises(ValueError, match="1 inputs expected, 2 given"):
        same([x, x])
    with pytest.raises(TypeError, match="not a tensor"):
        same([3])
    with pytest.raises(ValueError, match="constants"):
        same.bound((x, x), None, None, None, None)
    with pytest.raises(ValueError, match="constants"):
        same.bound((), None, ((1, 1),), None, None)
    assert same.bound((x,), None, None, None, None)([])[0] is x and "1 results" in repr(same)


@pytest.mark.parametrize("count", [*range(1, 18), 31, 32, 33, 64, 65, 128, 200, 256, 257, 512, 700, 1024])
def test_arguments_reach_a_kernel_in_order(count):
    """Every way in which a program passes arguments, against a function that stores the addresses it is given."""
    seen = []
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * count)(lambda *addresses: seen.append(addresses))
    inputs = [torch.ones(1) for _ in range(count)]
    step = (KERNEL, (), (), address(kernel), tuple(reversed(range(count))), count % 2 == 0, None)
    program(count, (), (step,), (), keep=kernel)(inputs)
    assert list(seen[-1]) == [x.data_ptr() for x in reversed(inputs)]


def filling(number):
    """A kernel that fills four floats."""

    def fill(place):
        (ctypes.c_float * 4).from_address(place)[:] = [number] * 4

    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(fill)


@pytest.mark.parametrize("is_long", [False, True])
def test_the_arena_is_one_block_and_goes_back(is_long):
    """Two values stand in the arena one after the other and a third beside them; operators see them as tensors."""
    seen = []

    def look(a, b):
        seen.append((a.data_ptr(), b.data_ptr(), a.tolist(), b.tolist()))
        return a + b

    kernels = [filling(1.0), filling(2.0), filling(3.0)]
    one, two, three = ((KERNEL, (k,), (), address(kernels[k - 1]), (k,), is_long, None) for k in (1, 2, 3))
    look_at = (OPERATOR, (), (), look, ((TENSOR, 1), (TENSOR, 2)), None, ((-1, 4, FLOATS, (4,), (1,)),))
    values = (
        (ARENA, FLOATS, 0, 0, None),
        (ARENA, FLOATS, 64, 0, None),
        (ARENA, FLOATS, 0, 0, None),
        (DELIVERED, None, 0, 0, None),
    )
    made = program(1, values, (one, two, look_at, three), ((TENSOR, 4),), (128, 0, 3), kernels)
    native.clear()
    before = native.pool_statistics()
    (result,) = made([torch.ones(1)])
    after = native.pool_statistics()
    assert result.tolist() == [3.0] * 4
    first, second, a, b = seen[0]
    assert second - first == 64 and (a, b) == ([1.0] * 4, [2.0] * 4)
    assert after["taken"] - before["taken"] == 1 and after["resting_bytes"] == 128
    assert after["lent_bytes"] == before["lent_bytes"]


def test_a_tensor_over_the_arena_that_somebody_keeps_keeps_the_arena():
    kept = []
    kernel = filling(5.0)
    one = (KERNEL, (1,), (), address(kernel), (1,), False, None)
    keep = (OPERATOR, (), (1,), kept.append, ((TENSOR, 1),), None, ())
    made = program(1, ((ARENA, FLOATS, 64, 0, None),), (one, keep), (), (128, 0, 1), kernel)
    for _ in range(5):
        made([torch.ones(1)])
    assert len({x.data_ptr() for x in kept}) == 5 and all(x.tolist() == [5.0] * 4 for x in kept)


@pytest.mark.parametrize("from_, root", [(OWN, 1), (MADE, 1), (DELIVERED, 1), (None, 0)])
def test_a_value_may_stand_in_the_memory_of_another(from_, root):
    """Value 2 is two by two elements in the memory of value 1, or of the input: written there, and returned."""
    kernel = filling(7.0)
    plan = {
        OWN: (OWN, FLOATS, 0, 0, None), DELIVERED: (DELIVERED, None, 0, 0, None), None: (OWN, FLOATS, 0, 0, None),
        MADE: (MADE, None, 0, 0, lambda: torch.zeros(4)),
    }[from_]  # fmt: skip
    first = (NOTHING, (1,), ())
    if from_ == DELIVERED:
        first = (OPERATOR, (), (), lambda: torch.zeros(9)[2:6], (), None, ((-1, 1, FLOATS, (4,), (1,)),))
    values = (plan, (SHARED, (16, (2, 32), (2, 2), (2, 1)), 0, root, None))
    step = (KERNEL, (2,), (), address(kernel), (2,), False, None)
    outputs = ((TENSOR, 2), (VIEW, 2, (2,), (1,), 1), (TENSOR, root))
    made = program(1, values, (first, step), outputs, keep=kernel)
    x = torch.ones(9)[3:7]
    result, part, whole = made([x])
    assert result.tolist() == [[7.0, 7.0], [7.0, 7.0]] and part.tolist() == [7.0, 7.0]
    assert part.data_ptr() == result.data_ptr() + 4 and whole.data_ptr() == result.data_ptr()
    assert (x.tolist() == [7.0] * 4) == (root == 0)


def test_calls_at_once_have_an_arena_each():
    barrier, kernel, wrong = threading.Barrier(4), filling(1.0), []

    def meet(a):
        mine = float(threading.get_ident() % 1000)
        a.fill_(mine)
        barrier.wait(20)
        if not (a == mine).all():
            wrong.append(a)
        return a.clone()

    one = (KERNEL, (1,), (), address(kernel), (1,), False, None)
    operator = (OPERATOR, (), (), meet, ((TENSOR, 1),), None, ((-1, 2, FLOATS, (4,), (1,)),))
    values = ((ARENA, FLOATS, 0, 0, None), (DELIVERED, None, 0, 0, None))
    made = program(1, values, (one, operator), ((TENSOR, 2),), (64, 0, 1), kernel)

    def work():
        for _ in range(50):
            made([torch.ones(1)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_long_kernel_lets_other_threads_run_and_an_interrupt_gets_through():
    """The kernel waits until another Python thread has written to it, then raises a signal."""
    import signal

    from staxlab.runtime.build import build_library

    kernel = build_library(
        '#include <signal.h>\nextern "C" void kernel(volatile int* go) { while (!*go) {} raise(SIGUSR1); }',
        "waiting",
    )["kernel"]
    go = torch.zeros(1, dtype=torch.int32)
    made = program(1, (), ((KERNEL, (), (), address(kernel), (0,), True, None),), (), keep=kernel)

    class Interrupted(Exception):
        pass

    def handler(number, frame):
        raise Interrupted

    previous = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Timer(0.05, lambda: go.fill_(1))
    try:
        thread.start()
        with pytest.raises(Interrupted):
            made([go])
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, previous)


def test_the_regions_that_are_measured_are_what_they_are_called():
    from benchmarks import overhead

    timed, parts = overhead.region_sides(4)
    assert all(part["entries"] == 1 for part in parts.values())
    assert (parts["1 kernel"]["kernels"], parts["5 kernels"]["kernels"], parts["20 kernels"]["kernels"]) == (1, 5, 20)
    assert parts["3 kernels, 3 operators"] == {"kernels": 3, "operators": 3, "entries": 1}
    for name in parts:
        a, b = timed[f"{name}, C"]()[0], timed[f"{name}, Python"]()[0]
        assert torch.equal(a, b) and a.stride() == b.stride()


def test_stores_go_past_the_caches_where_pages_are_there_already():
    """A kernel with two entries is called by the second for memory that the pool hands out again and for the caller's
    own, and by the first for new memory and for addresses inside a cache line."""
    calls = []
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    entries = [signature(lambda x, out, n=name: calls.append(n)) for name in ("ordinary", "past caches")]
    layout = (1 << 20, native.DLPACK_TYPES[torch.float32], (1 << 18,), (1,))
    first, second = map(address, entries)
    kernel = (KERNEL, (1,), (), first, (0, 1), False, None, second, (1,))
    program = native.Program(1, (0, 0, 0), ((OWN, layout, 0, 0, None),), (kernel,), ((TENSOR, 1),), None, ())
    native.clear()
    x = torch.zeros(1 << 18)
    held = program([x])
    assert calls == ["ordinary"]
    del held
    program([x])
    assert calls == ["ordinary", "past caches"]
    over_input = (KERNEL, (), (), first, (0, 0), False, None, second, (0,))
    program = native.Program(1, (0, 0, 0), (), (over_input,), ((TENSOR, 0),), None, ())
    program([x])
    program([x[1:]])
    assert calls[2:] == ["past caches", "ordinary"]
