"""Memory over time: small cases by hand, the sizes that partitions state, what eager execution really holds, and what
the schedules of both halves allocate."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import staxlab
from staxlab.autodiff.memory import MemoryTimeline, Occupancy, Step, Storage, memory_timeline
from staxlab.autodiff.partition import partition
from staxlab.errors import OptionError
from staxlab.loops.lowering import basis
from staxlab.loops.lowering.kinds import kind_of
from staxlab.operators.structure import flatten
from staxlab.schedule.owned_inputs import last_uses
from tests.autodiff.programs import recorded, steps, write

KIB = 1024


def over(function, *arguments, budgets=()):
    _, joint, _ = recorded(function, list(arguments), basis())
    assert not joint.obstacles, joint.obstacles
    return memory_timeline(joint, kind_of=kind_of, budgets=budgets)


def weight(*shape):
    return torch.randn(*shape, requires_grad=True)


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_example_5_1_operator_by_operator():
    """h, gelu(h) and the gradient of h take 8 KiB each, the gradient of W 16, the loss and its gradient 4 bytes."""
    pytest.importorskip("scipy")
    found = over(lambda x, w: F.gelu(x @ w).sum(), torch.randn(32, 64), weight(64, 64), budgets=(0,))
    assert [step.name for step in found.steps] == ["mm", "gelu", "sum", "gelu_backward", "mm_0"] and found.turn == 3
    assert found.primal_bytes == 8 * KIB + 16 * KIB
    h, loss, upstream = 8 * KIB, 4, 4
    # gelu is an operator of eager's, and gone when the sum has read it; h is released once gelu_backward has read it.
    assert found["eager"].live == (h, 2 * h, 2 * h + loss, h + loss + upstream + h, loss + h + 16 * KIB)
    # In the region gelu is fused into the sum, and h is let go of once gelu_backward has read it.
    cut = (h, h, h + loss, h + loss + upstream + h, loss + upstream + h + 16 * KIB)
    assert found["min cut"].live == found["save all"].live == cut
    # A budget of nothing: h is computed again, for gelu_backward alone.
    assert found["budget 0"].live == (h, h, h + loss, h + loss + upstream + h, loss + upstream + h + 16 * KIB)
    assert [curve.kept_bytes for curve in found.curves] == [h, h, h, 0]
    assert found["min cut"].peak == 24 * KIB + 8 and found.steps[found["min cut"].peak_step].name == "mm_0"
    assert {s.name: s.nbytes for s in found["min cut"].alive(1)} == {"mm": h}


def test_views_have_no_memory_of_their_own():
    found = over(lambda w: (w.exp().t().reshape(64).unsqueeze(0) * 2).sum(), weight(8, 8))
    assert [step.name for step in found.steps][:2] == ["exp", "mul"] or "clone" in found.steps[1].name
    names = [storage.name for storage in found["eager"].storages]
    assert not {"t", "unsqueeze"} & set(names) and len(names) == len(set(names))


def test_a_view_keeps_what_it_looks_at_alive():
    found = over(lambda w: (w.exp().t() + w.sin()).sum(), weight(8, 8))
    exp = next(s for s in found["eager"].storages if s.name == "exp")
    assert found.steps[exp.stop].is_backward and exp.kept  # exp's derivative is its result


def test_results_and_gradients_stay_to_the_end():
    found = over(lambda x, w: (x @ w).relu(), torch.randn(4, 8), weight(8, 8))
    for curve in found.curves:
        last = {storage.name for storage in curve.alive(len(found.steps) - 1)}
        assert {"relu", "mm_0"} <= last, curve.name


def test_a_fused_chain_is_never_in_memory():
    found = over(lambda x, w: (x * w).sin().cos().tanh().sum(), torch.randn(64, 64), weight(64, 64))
    whole = 64 * 64 * 4
    assert found["eager"].kept_bytes == 3 * whole  # what sin, cos and tanh need
    assert found["min cut"].kept_bytes == 0 and max(found["min cut"].live[: found.turn]) == 4
    assert found["min cut"].peak == whole + 4 + 4  # the gradient, the loss and its gradient
    assert found["eager"].peak >= 4 * whole


def stored(found, curve):
    """Name and first step of every storage of a curve."""
    return {(storage.name, storage.start) for storage in found[curve].storages}


def test_what_autograd_packs_and_never_reads_is_kept_as_well():
    """The result of a power is packed for the derivative by the exponent, which nobody asks for here."""
    found = over(lambda x, w: (w ** (x * 2).abs()).sum(), torch.rand(4, 4), weight(4, 4))
    (power,) = (storage for storage in found["eager"].storages if storage.name == "pow")
    assert power.kept and power.stop == len(found.steps) - 1


def test_running_statistics_that_are_packed_and_updated():
    """Autograd packs them; that they are modified makes them more than an input."""
    statistics = torch.zeros(8), torch.ones(8)
    found = over(
        lambda x, w, mean, var: F.batch_norm(x @ w, mean, var, training=True).square().sum(),
        torch.randn(4, 8), weight(8, 8), *statistics,
    )  # fmt: skip
    kept = {storage.name for storage in found["eager"].storages if storage.kept}
    assert {"mean", "var"} <= kept and not {"mean", "var"} & {storage.name for storage in found["min cut"].storages}


def test_the_old_contents_of_an_input_are_a_copy():
    def f(b, w):
        loss = ((b * 2) * w + b.sin() * w.exp()).sum()
        with torch.no_grad():
            b.add_(1)
        return loss

    found = over(f, torch.randn(8, 8), weight(8, 8))
    assert ("b_before", 0) in stored(found, "min cut") and found["min cut"].kept_bytes == 8 * 8 * 4


def test_what_a_strided_view_looks_at_is_in_memory():
    found = over(lambda w: ((w * 2).as_strided((8, 8), (1, 8)) + 1).sum(), weight(8, 8))
    assert ("mul", 0) in stored(found, "min cut")
    plain = over(lambda w: ((w * 2).t() + 1).sum(), weight(8, 8))
    assert "mul" not in {storage.name for storage in plain["min cut"].storages}


def test_what_is_computed_again_starts_before_its_first_reader():
    """h = x W comes back when the gradient of V is computed, after that of gelu(g)."""
    pytest.importorskip("scipy")

    def f(x, w, v):
        return F.gelu(F.gelu(x @ w) @ v).sum()

    found = over(f, torch.randn(32, 64), weight(64, 64), weight(64, 16), budgets=(32 * 16 * 4,))
    name = found.curves[-1].name
    again = [storage for storage in found[name].storages if storage.name == "mm"]
    assert [storage.start < found.turn for storage in again] == [True, False] and not again[1].kept
    assert found.turn < again[1].start < len(found.steps) - 1
    assert found[name].kept_bytes == 32 * 16 * 4


def test_statistics_that_are_computed_again_are_written():
    pytest.importorskip("scipy")
    found = over(
        lambda x, w: F.layer_norm(x @ w, (64,)).square().sum(), torch.randn(32, 64), weight(64, 64), budgets=(0,)
    )
    names = {storage.name for storage in found["budget 0"].storages if storage.start >= found.turn}
    assert {"mm", "native_layer_norm_1", "native_layer_norm_2"} <= names


def test_without_gradients_there_is_only_a_forward_pass():
    _, joint, _ = recorded(lambda x: (x @ x).exp(), [torch.randn(4, 4)], basis())
    found = memory_timeline(joint, kind_of=kind_of)
    assert found.turn == len(found.steps) == 2 and all(curve.kept_bytes == 0 for curve in found.curves)
    assert found["eager"].live == (64, 128)


def test_a_program_that_computes_nothing():
    _, joint, _ = recorded(lambda w: w, [weight(4)], basis())
    found = memory_timeline(joint, kind_of=kind_of)
    assert found.steps == () and found["eager"].peak == 0 and str(found)


def test_curves_are_sums_of_their_storages():
    curve = Occupancy("a", 4, (Storage("x", 5, 0, 2), Storage("y", 7, 1, 1), Storage("z", 2, 3, 3, True)))
    assert curve.live == (5, 12, 5, 2) and (curve.peak, curve.peak_step, curve.kept_bytes) == (12, 1, 2)
    assert [storage.name for storage in curve.alive(1)] == ["y", "x"]


def test_the_text_has_a_chart_and_the_bytes_of_each_operator():
    curve = Occupancy("one", 4, (Storage("x", 80, 0, 2), Storage("y", 80, 1, 1)))
    record = MemoryTimeline(tuple(Step(name, k > 1, frozenset()) for k, name in enumerate("abcd")), 2, 7, (curve,))
    text = record.format()
    assert "|▄█:▄ |" in text and "2 forward and 2 backward operators" in text and "7 bytes" in text
    assert "peak           160 at %b" in text and [line.split()[-1] for line in text.splitlines()[-4:]] == [
        "80", "160", "80", "0"
    ]  # fmt: skip
    long = MemoryTimeline(tuple(Step(f"s{k}", k > 150, frozenset()) for k in range(300)), 151, 0,
                          (Occupancy("one", 300, (Storage("x", 8, 100, 100), Storage("y", 1, 0, 299))),))  # fmt: skip
    chart = long.format().split("|")[1]
    assert len(chart) <= 75 and chart.count("█") == 1 and "s100" in long.format() and "%s7" not in long.format()


def test_asking_for_a_curve_that_is_not_there():
    with pytest.raises(KeyError, match="eager, save all, min cut"):
        over(lambda w: w.exp().sum(), weight(4))["maximum"]


def test_a_compilation_has_its_timeline_with_its_own_budget():
    pytest.importorskip("scipy")

    def f(x, w):
        return F.gelu(F.gelu(x @ w) @ w).sum()

    arguments = torch.randn(32, 64), weight(64, 64)
    compilation = staxlab.explain(f, *arguments, options={"memory_budget": 8192})
    assert [curve.name for curve in compilation.memory(0).curves][3:] == ["budget 8,192", "budget 0"]
    assert compilation.memory()["budget 8,192"].kept_bytes == compilation.partition.saved_bytes <= 8192
    with torch.no_grad(), pytest.raises(OptionError, match="no gradients"):
        staxlab.explain(f, *arguments).memory()


# -- against the partition --------------------------------------------------------------------------------------------


@given(steps)
@settings(max_examples=80)
def test_what_is_kept_is_what_partitions_say(numbers):
    program = write(numbers)
    _, joint, _ = recorded(program.function, program.arguments(), basis())
    assume(not joint.obstacles)
    part = partition(joint, kind_of=kind_of)
    found = memory_timeline(joint, kind_of=kind_of)
    assert found["eager"].kept_bytes == part.eager_bytes
    assert found["save all"].kept_bytes <= part.save_all_bytes
    if part.plan == "min cut":
        assert found["min cut"].kept_bytes == part.saved_bytes
    position = {step.name: k for k, step in enumerate(found.steps)}
    eager = {storage.name: storage for storage in found["eager"].storages}
    for node in joint.graph:  # whatever an operator reads is there while it runs
        if node.name not in position:
            continue
        for source in node.inputs:
            storage = eager.get(source.name)
            assert storage is None or storage.is_alive(position[node.name]), (node, source)
    for curve in found.curves:
        for storage in curve.storages:
            assert 0 <= storage.start <= storage.stop < len(found.steps)
            if storage.kept:
                assert storage.start < found.turn
        assert curve.live == tuple(
            sum(s.nbytes for s in curve.storages if s.is_alive(k)) for k in range(len(found.steps))
        )


# -- against what happens ---------------------------------------------------------------------------------------------


class Holding(TorchDispatchMode):
    """After each operator, the bytes of all memory that was made meanwhile and is still there."""

    def __init__(self, *given):
        super().__init__()
        self.given = {tensor.untyped_storage()._cdata for tensor in given}
        self.known, self.after = {}, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in flatten(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata in self.given:
                    continue
                self.known.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
                del storage
        self.known = {key: entry for key, entry in self.known.items() if not entry[0].expired()}
        self.after.append((function._schema.name.split("::")[1], sum(size for _, size in self.known.values())))
        return result


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: F.gelu(x @ w).sum(),
        lambda x, w: F.relu(x @ w).mean(),
        lambda x, w: (x @ w).tanh().sigmoid().sum(),
        lambda x, w: F.softmax(x @ w, -1).exp().sum(),
        lambda x, w: F.gelu(F.gelu(x @ w) @ x.t()).sum(),
        lambda x, w: (w.sin() * w.cos()).sum(),
        lambda x, w: (w.exp() + w.exp() * 2).sum(),
        lambda x, w: ((x @ w).t() @ (x @ w)).sum(),
        lambda x, w: F.layer_norm(F.gelu(x @ w), (64,)).square().mean(),
        lambda x, w: F.layer_norm(w.t().sigmoid() @ w, (64,)).log_softmax(-1).mean(),
    ],
    ids=[
        "gelu", "relu", "chain", "softmax", "two products", "two readers", "sums of gradients", "product with itself",
        "normalization", "views",
    ],
)  # fmt: skip
def test_eager_execution_holds_what_the_model_says(function):
    """Operator by operator, what a node of autograd's graph needs in between included."""
    x, w = torch.randn(32, 64), weight(64, 64)
    found = over(function, x, w)
    with Holding(x, w) as holding:
        loss = function(x, w)
        seed = torch.ones_like(loss)  # held here to the end, by the engine only until it has been read
        mark = len(holding.after)
        gradient = torch.autograd.grad(loss, w, seed)
    assert gradient
    names = {step.name.rstrip("_0123456789") for step in found.steps}
    forward = [size for name, size in holding.after[: mark - 1] if name in names]
    assert forward == list(found["eager"].live[: found.turn])
    backward = [size for name, size in holding.after[mark:] if name in names]
    (upstream,) = (storage for storage in found["eager"].storages if storage.name == "tangents_1")
    backward = [size - 4 * (k > upstream.stop) for k, size in enumerate(backward, found.turn)]
    assert backward == list(found["eager"].live[found.turn :])


def allocated(half, before):
    """Bytes alive while each node of a half's schedule runs, on top of what is there before and is not let go of."""
    schedule = half.schedule
    live = [before] * len(schedule.nodes)
    for k, names in enumerate(last_uses(schedule)):
        for name in names:
            layout = schedule.layouts[name]
            for step in range(k + 1, len(live)):
                live[step] -= layout.storage_elements * layout.dtype.itemsize
    for k, node in enumerate(schedule.nodes):
        for name in node.buffers:
            layout = schedule.layouts[name]
            size = layout.storage_elements * layout.dtype.itemsize
            for step in range(k, schedule.last_reader.get(name, len(live) - 1) + 1):
                live[step] += size
    return live


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: F.gelu(x @ w).sum(),
        lambda x, w: F.relu(x @ w).sum(),
        lambda x, w: F.dropout(torch.tanh(x @ w), 0.5).sum(),
        lambda x, w: (torch.sin(x @ w), (x @ w).cos()),
        lambda x, w: w / w.sum(-1, keepdim=True),
        lambda x, w: F.layer_norm(F.gelu(x @ w) @ w, (64,)).square().sum(),
    ],
    ids=["gelu", "relu", "dropout", "two results", "division", "two layers"],
)
def test_kernels_allocate_what_the_model_says(function):
    """Exactly, where every buffer has a kernel of its own; fused kernels keep some of them to themselves, and have
    a number they add up to beside what they read."""
    for fuse in (False, True):
        compilation = staxlab.explain(function, torch.randn(32, 64), weight(64, 64), options={"fuse": fuse})
        part, joint = compilation.partition, compilation.joint
        curve = compilation.memory()[part.plan]
        turn = compilation.memory().turn
        kept = part.saved_bytes + sum(node.val.nbytes for node in set(joint.outputs) - set(part.saved))
        upstream = sum(node.val.nbytes for node in joint.tangents if node is not None)
        found = (max(allocated(compilation, 0)), max(allocated(compilation.backward, kept + upstream)))
        model = (max(curve.live[:turn]), max(curve.live[turn:]))
        numbers = 16 if fuse else 0
        assert found[0] <= model[0] + numbers and found[1] <= model[1] + numbers
        assert fuse or found == model
