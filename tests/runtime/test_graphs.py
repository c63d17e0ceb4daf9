"""CUDA Graphs on a simulated device: addresses, lifetimes of results, and what happens when something fails."""

from __future__ import annotations

import warnings

import pytest
import torch

from staxlab.errors import GraphWarning
from staxlab.runtime import graphs
from staxlab.runtime.graph_recording import place_for, span, whole
from staxlab.runtime.graphs import FALLBACK, REPLAYING, WARMING_UP, GraphedRegion
from staxlab.runtime.simulated_device import SimulatedDevice


def doubled(x):
    return (x * 2,)


def region(run=doubled, **options):
    device = options.pop("device", None) or SimulatedDevice()
    found = GraphedRegion(run, device, **options)
    return found, device


def replays(device):
    return sum(entry[0] == "replay" for entry in device.log)


def simple(run):
    """A function of tensors as a region: a list in, a tuple out."""
    return lambda inputs: run(*inputs)


# -- the guard ---------------------------------------------------------------------------------------------------------


def test_first_call_runs_second_records_later_ones_replay():
    x = torch.arange(4.0)
    f, device = region(simple(doubled))
    states = []
    for call in range(4):
        x.fill_(call)
        (y,) = f([x])
        assert y.tolist() == [2.0 * call] * 4
        states.append(f.state)
        del y
    assert states == [WARMING_UP, REPLAYING, REPLAYING, REPLAYING]
    assert [entry[0] for entry in device.log] == ["warm up", "record", "replay", "replay", "replay"]
    assert f.report().direct == ((graphs.FIRST_TIME, 1),) and f.replays == 3


def test_a_replay_reads_the_recorded_addresses_and_not_the_python_objects():
    x = torch.ones(4)
    f, device = region(simple(doubled))
    f([x]), f([x])
    other = x.detach()  # another object, the same memory
    x.fill_(7)
    assert f([other])[0].tolist() == [14.0] * 4 and replays(device) == 2


def test_other_addresses_run_the_region_and_are_counted():
    x = torch.ones(4)
    f, device = region(simple(doubled))
    f([x]), f([x])
    elsewhere = torch.full((4,), 5.0)
    assert f([elsewhere])[0].tolist() == [10.0] * 4
    assert replays(device) == 1 and f.report().direct_calls == 2


def test_alternating_addresses_get_a_recording_each():
    pair = [torch.ones(4), torch.ones(4)]
    f, device = region(simple(doubled))
    for call in range(12):
        x = pair[call % 2]
        x.fill_(call)
        assert f([x])[0].tolist() == [2.0 * call] * 4
    assert len(f.report().recordings) == 2 and replays(device) == 10


def test_addresses_that_never_come_again_are_never_recorded():
    f, device = region(simple(doubled))
    kept = [torch.full((4,), float(call)) for call in range(20)]
    for call, x in enumerate(kept):
        assert f([x])[0].tolist() == [2.0 * call] * 4
    assert ("record",) not in device.log and f.state == WARMING_UP


def test_beyond_the_limit_a_frequent_address_takes_the_oldest_recordings_place():
    many = [torch.full((2,), float(k)) for k in range(4)]
    f, device = region(simple(doubled), most_recordings=3)
    for _ in range(3):
        for x in many:
            assert torch.equal(f([x])[0], x * 2)
    assert len(f.report().recordings) == 3
    assert dict(f.report().direct)[graphs.ALL_TAKEN] == 2
    for _ in range(graphs.PATIENCE + 2):
        assert torch.equal(f([many[3]])[0], many[3] * 2)
    report = f.report()
    assert report.dropped == 1 and len(report.recordings) == 3
    assert torch.equal(f([many[1]])[0], many[1] * 2)


def test_number_and_shapes_are_compared_where_no_key_has_done_it():
    x = torch.arange(6.0)
    f, device = region(simple(doubled))
    f([x]), f([x])
    assert f([x[:4]])[0].tolist() == [0.0, 2.0, 4.0, 6.0]  # the same data pointer
    assert f([x.view(2, 3)])[0].shape == (2, 3)
    assert dict(f.report().direct)[graphs.OTHER_INPUTS] == 2


# -- results -----------------------------------------------------------------------------------------------------------


def test_a_loop_that_rebinds_its_result_takes_turns_and_never_runs_directly():
    x = torch.ones(4)
    f, device = region(simple(doubled))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in range(10):
            x.fill_(call)
            (y,) = f([x])  # the y of the call before is held meanwhile
            assert y.tolist() == [2.0 * call] * 4
    assert f.report().direct_calls == 1 and len(f.report().recordings) == 2


def test_results_that_are_held_never_change_and_one_warning_says_so():
    x = torch.ones(4)
    f, device = region(simple(doubled), name="step")
    kept = []
    with pytest.warns(GraphWarning, match=r"step cannot replay.*\n.*clone\(\)") as caught:
        for call in range(8):
            x.fill_(call)
            kept.append(f([x])[0])
    assert len(caught) == 1
    assert [y[0].item() for y in kept] == [2.0 * call for call in range(8)]
    assert dict(f.report().direct)[graphs.HELD] == 5
    kept.clear()
    before = f.replays
    f([x])
    assert f.replays == before + 1, "once the results are gone the graph is replayed again"


def test_results_that_are_held_for_ever_are_left_to_who_holds_them():
    x = torch.ones(4)
    f, device = region(simple(doubled))
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        for call in range(8 * graphs.PATIENCE):
            x.fill_(call)
            (y,) = f([x])
            assert y.tolist() == [2.0 * call] * 4
            if call in (3, 4):
                kept.append(y)
        replayed = f.replays
        for _ in range(10):
            (y,) = f([x])
    assert [y[0].item() for y in kept] == [6.0, 8.0]
    assert f.replays == replayed + 10 and f.report().dropped == 2


@pytest.mark.parametrize(
    "derive",
    [
        lambda y: y[1:],
        lambda y: y.view(2, 2).t(),
        lambda y: y.detach(),
        lambda y: y.numpy(),
        lambda y: y.untyped_storage(),
        lambda y: torch.from_dlpack(y),
        lambda y: (y.clone().requires_grad_() * y).sum(),  # autograd has saved it
    ],
)
def test_whatever_looks_at_a_result_holds_it(derive):
    x = torch.ones(4)
    f, device = region(simple(doubled))
    f([x])
    first = derive(f([x])[0])
    before = f.report().recordings[0]
    assert before.held
    x.fill_(9)
    f([x])
    assert f.report().recordings[0].replays == before.replays
    del first
    assert not f.report().recordings[0].held


def test_who_holds_a_result_from_the_start_keeps_it():
    """Somebody inside the program keeps a result while it is recorded: it must never be written over."""
    kept = []

    def keeping(x):
        y = x * 2
        kept.append(y[1:])
        return (y,)

    x = torch.ones(4)
    f, device = region(simple(keeping))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        for call in range(8):
            x.fill_(call)
            assert f([x])[0].tolist() == [2.0 * call] * 4
    kept.clear()
    before = f.replays
    x.fill_(9)
    assert f([x])[0].tolist() == [18.0] * 4 and f.replays == before + 1


def test_two_results_in_one_memory_stay_so():
    x = torch.arange(4.0)
    for outputs in ("reuse", "copy"):
        f, _ = region(simple(lambda x: ((y := x + 1), y[2:], y.view(2, 2), 3, None)), outputs=outputs)
        for _ in range(4):
            y, tail, square, number, nothing = f([x])
            assert number == 3 and nothing is None
            assert torch.equal(y, x + 1) and torch.equal(tail, y[2:]) and torch.equal(square, y.view(2, 2))
            y.fill_(0)
            assert tail.tolist() == [0.0, 0.0] and not square.any()
            del y, tail, square


def test_a_result_that_is_a_view_of_what_stays_inside_is_not_held_by_it():
    x = torch.arange(4.0)
    f, _ = region(simple(lambda x: ((x + 1)[1:], (x * 2).view(2, 2))))
    for call in range(6):
        x.fill_(call)
        tail, square = f([x])
        assert tail.tolist() == [call + 1.0] * 3 and square.tolist() == [[2.0 * call] * 2] * 2
        del tail, square
    assert f.replays == 5 and len(f.report().recordings) == 1


def test_writes_into_one_result_are_counted_for_those_that_look_at_it():
    x = torch.arange(4.0)
    f, _ = region(simple(lambda x: ((y := x + 1), y[2:])))
    for _ in range(3):
        y, tail = f([x])
        (tail * torch.ones(2, requires_grad=True)).sum()
        y.add_(1)
        assert tail._version == 1 and torch.equal(tail, x[2:] + 2)
        del y, tail


def test_copied_results_are_the_callers_own():
    x = torch.ones(4)
    f, device = region(simple(doubled), outputs="copy")
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in range(6):
            x.fill_(call)
            kept.append(f([x])[0])
    assert [y[0].item() for y in kept] == [2.0 * call for call in range(6)]
    assert len(f.report().recordings) == 1 and f.replays == 5


def test_results_that_are_inputs_or_look_at_them_are_the_callers():
    f, _ = region(simple(lambda x, w: (x, x[1:], x * w)))
    w = torch.full((4,), 3.0)
    x = torch.arange(4.0)
    for _ in range(3):
        x2 = x.detach()
        same, tail, product = f([x2, w])
        assert same is x2 and tail.data_ptr() == x2[1:].data_ptr() and torch.equal(product, x * 3)
        del product


def test_a_result_resized_by_the_caller_costs_the_recording_and_no_value():
    x = torch.ones(4)
    f, _ = region(simple(doubled))
    f([x])
    y = f([x])[0]
    y.untyped_storage().resize_(0)
    del y
    x.fill_(4)
    assert f([x])[0].tolist() == [8.0] * 4
    assert f.report().dropped == 1


def test_a_recording_that_was_lost_makes_room_for_another_address():
    many = [torch.full((2,), float(k)) for k in range(3)]
    f, _ = region(simple(doubled), most_recordings=1)
    f([many[0]])
    f([many[0]])[0].untyped_storage().resize_(0)
    assert f([many[0]])[0].tolist() == [0.0] * 2  # found lost, and warm again: recorded at the next call
    for x in many[1:]:
        for _ in range(graphs.PATIENCE + 3):
            assert torch.equal(f([x])[0], x * 2)
    report = f.report()
    assert report.dropped >= 2 and len(report.recordings) == 1 and report.replays > 3


def test_a_result_of_the_last_call_may_be_the_next_input():
    y = torch.ones(3)
    f, _ = region(simple(lambda x: (x * 2 + 1,)))
    for call in range(30):
        y = f([y])[0]
        if call % 10 == 9:
            y = torch.ones(3)
        expected = 2.0 ** (call % 10 + 2) - 1 if call % 10 != 9 else 1.0
        assert y.tolist() == [expected] * 3, call


def test_results_have_version_counters_of_their_own():
    x = torch.ones(4)
    f, _ = region(simple(doubled))
    f([x])
    y = f([x])[0]
    y.add_(1)
    assert y._version == 1
    del y
    z = f([x])[0]
    assert z._version == 0 and z.tolist() == [2.0] * 4


# -- writes into inputs ------------------------------------------------------------------------------------------------


def counted(x, state):
    state.add_(1)
    return (x * state,)


@pytest.mark.parametrize("inputs", ["check", "copy"])
def test_a_program_that_modifies_an_input_does_so_once_per_call(inputs):
    x, state = torch.ones(3), torch.zeros(3)
    f, _ = region(simple(counted), inputs=inputs)
    for call in range(1, 8):
        version = state._version
        (y,) = f([x.clone() if inputs == "copy" else x, state])
        assert state.tolist() == [call] * 3 == y.tolist()
        assert state._version == version + 1, "autograd must notice every write"


def test_in_inference_mode_there_are_no_version_counters():
    with torch.inference_mode():
        x, state = torch.ones(3), torch.zeros(3)
        for inputs in ("check", "copy"):
            f, _ = region(simple(counted), inputs=inputs)
            state.zero_()
            for call in range(1, 6):
                (y,) = f([x.clone(), state])
                assert state.tolist() == [call] * 3 == y.tolist()


# -- copying inputs ----------------------------------------------------------------------------------------------------


def test_inputs_that_move_are_copied_and_those_that_stay_are_not():
    w = torch.full((4,), 3.0)
    f, device = region(simple(lambda x, w: (x * w,)), inputs="copy")
    kept = []
    for call in range(6):
        kept.append(torch.full((4,), float(call)))
        assert f([kept[-1], w])[0].tolist() == [3.0 * call] * 4
    (info,) = f.report().recordings
    assert info.copied_inputs == 1 and info.copied_bytes == 16 and info.replays == 5
    moved = w.clone().fill_(5)
    for _ in range(4):
        assert f([kept[1], moved])[0].tolist() == [5.0] * 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4).t(),
        lambda: torch.randn(4, 1).expand(4, 5),
        lambda: torch.randn(20)[1::3],
        lambda: torch.randn(()),
        lambda: torch.randn(0, 4),
        lambda: torch.randn(9)[1:].view(2, 4),
    ],
)
def test_a_copy_keeps_layout_and_alignment(make):
    x = make()
    copy = place_for(x)
    whole(copy).copy_(whole(x))
    assert torch.equal(copy, x) and copy.stride() == x.stride()
    assert not x.numel() or copy.data_ptr() % 16 == x.data_ptr() % 16 and span(copy) == span(x)


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", ["record", "replay"])
def test_a_failure_warns_once_and_the_region_runs_as_it_is(fails_at):
    x, state = torch.ones(3), torch.zeros(3)
    device = SimulatedDevice(fails_at)
    f, _ = region(simple(counted), device=device, name="loss")
    words = rf"loss runs without CUDA Graphs.*{fails_at}ing failed.*as planned"
    with pytest.warns(GraphWarning, match=words) as caught:
        for call in range(1, 6):
            (y,) = f([x, state])
            assert y.tolist() == [call] * 3 == state.tolist()
    assert len(caught) == 1 and f.state == FALLBACK and f.report().direct_calls == 5
    assert not device.is_capturing() and "failed" in str(f.report())


def test_reading_a_value_back_makes_recording_fail_and_nothing_else():
    f, device = region(simple(lambda x: (x * float(x.sum().item()),)))
    x = torch.ones(3)
    with pytest.warns(GraphWarning, match="waits for the device"):
        for call in range(4):
            x.fill_(call)
            assert f([x])[0].tolist() == [3.0 * call * call] * 3
    assert f.state == FALLBACK and not device.is_capturing()


def test_an_error_of_the_program_is_raised_as_without_graphs():
    def failing(x):
        raise ValueError("mine")

    f, device = region(simple(failing))
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            f([torch.ones(2)])
    calls = []

    def second(x):
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("mine")
        return (x + 1,)

    f, device = region(simple(second))
    x = torch.ones(2)
    f([x])
    with pytest.warns(GraphWarning, match="ValueError: mine"), pytest.raises(ValueError, match="mine"):
        f([x])
    assert f.state == FALLBACK and not device.is_capturing()


def test_an_interrupt_while_recording_leaves_the_region_usable():
    calls = []

    def interrupted(x):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return (x + 1,)

    f, device = region(simple(interrupted))
    x = torch.ones(2)
    f([x])
    with pytest.raises(KeyboardInterrupt):
        f([x])
    assert f.state == WARMING_UP and not device.is_capturing()
    assert f([x])[0].tolist() == [2.0, 2.0] and f.state == REPLAYING


def test_warnings_as_errors_do_not_lock_the_region():
    x = torch.ones(3)
    f, _ = region(simple(doubled), device=SimulatedDevice("record"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphWarning)
        f([x])
        with pytest.raises(GraphWarning):
            f([x])
        assert f([x])[0].tolist() == [2.0] * 3


def test_reset_forgets_and_starts_again():
    x = torch.ones(3)
    f, device = region(simple(doubled))
    f([x]), f([x])
    f.reset()
    assert f.state == WARMING_UP and not f.report().recordings
    assert f([x])[0].tolist() == [2.0] * 3 and f([x])[0].tolist() == [2.0] * 3 and f.state == REPLAYING
