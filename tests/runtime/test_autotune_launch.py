"""A kernel that searches at its first call: on the actual arguments, without a trace, recorded, and interruptible.

The device is Triton's interpreter and the clock is a table; nothing else differs from what runs on a GPU.
"""

from __future__ import annotations

import json
import logging
import math
import os
import warnings
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

import staxlab
from staxlab.codegen.triton import interpreter
from staxlab.errors import BuildError, OptionError
from staxlab.options import SEARCH_METHODS, Options
from staxlab.pipeline import _tensor_constants
from staxlab.runtime import artifact, autotune_record, build, cache
from staxlab.runtime.autotune_launch import TunedLauncher, spills_of, stand_ins


class Launcher:
    """A launcher that interprets, and says what a compiler would about spills."""

    def __init__(self, kernel, spills=0, refused=False):
        self.kernel, self.calls, self.spills, self.refused = kernel, 0, spills, refused

    def __call__(self, *tensors):
        if self.refused:
            raise BuildError("the compiler refuses")
        self.calls += 1
        interpreter.interpret(self.kernel, tensors)

    @property
    def compiled(self):
        return [SimpleNamespace(n_spills=self.spills)]

    @property
    def configuration(self):
        launch = self.kernel.launch
        return (*launch["constants"].values(), launch["num_warps"])


class Device:
    """Makes launchers and times them: ``cost`` maps (constants..., warps) to seconds, by default all cost the same."""

    def __init__(self, cost=None, spilling=(), refused=(), interrupted_after=None):
        self.cost, self.spilling, self.refused = cost or (lambda c: 1e-3), spilling, refused
        self.made, self.readings, self.interrupted_after = [], [], interrupted_after

    def load(self, kernel):
        launcher = Launcher(kernel)
        launcher.spills = 7 if self.spilling == "all" or launcher.configuration in self.spilling else 0
        launcher.refused = launcher.configuration in self.refused
        self.made.append(launcher)
        return launcher

    def timer(self, launch, tensors):
        if self.interrupted_after is not None and len(self.readings) >= self.interrupted_after:
            raise KeyboardInterrupt
        if not self.readings or launch.configuration not in self.readings:
            launch(*tensors)
        self.readings.append(launch.configuration)
        return self.cost(launch.configuration)


def kernel_of(function, *inputs, number=0):
    compilation = staxlab.explain(function, *inputs, target="sm_90", strict_native=True)
    return compilation, compilation.kernels[number]


X, W = (torch.randn(8, 128, generator=torch.Generator().manual_seed(k)) for k in (0, 1))


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def tuned(device, method="candidates", function=example_1_1, inputs=(X, W), **more):
    compilation, kernel = kernel_of(function, *inputs)
    launcher = TunedLauncher(
        kernel, method, load=device.load, timer=device.timer, readings=3, device="pretended", version="0", **more
    )
    buffers = dict(zip(compilation.schedule.inputs, inputs, strict=True))
    for buffer in compilation.schedule.nodes[0].buffers:
        layout = compilation.schedule.layouts[buffer]
        buffers.setdefault(buffer, torch.full(layout.shape, 77.0, dtype=layout.dtype))
    return launcher, [buffers[argument.buffer] for argument in kernel.arguments]


def test_what_was_measured_and_what_was_recorded_are_told(cache_dir, caplog):
    with caplog.at_level(logging.DEBUG, logger="staxlab.autotune"):
        for _ in range(2):
            launcher, tensors = tuned(Device(lambda c: 1e-3 / c[-1]))
            launcher(*tensors)
    measured, recorded = (record.getMessage() for record in caplog.records if record.name == "staxlab.autotune")
    assert measured.startswith(f"{launcher.kernel.name}: ") and "recorded: " not in measured
    assert recorded.startswith(f"{launcher.kernel.name}: ") and "recorded: " in recorded


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_a_search_has_what_it_will_measure_compiled_at_once(cache_dir, method):
    """Everything measured was announced before, several at a time."""
    device = Device(lambda c: 1e-3 / c[-1])
    launcher, tensors = tuned(device, method)
    batches: list[list] = []
    launcher.ahead = batches.append
    launcher(*tensors)
    announced = [kernel for batch in batches for kernel in batch]
    assert batches and all(len(batch) > 1 for batch in batches)
    measured = set(device.readings) - {Launcher(launcher.kernel).configuration}
    missed = measured - {Launcher(kernel).configuration for kernel in announced}
    if method != "descent":  # which may come to a place with a single new neighbour
        assert len(missed) <= 1, "the search compiled one by one"
    if method in ("random", "candidates"):
        assert len(batches) == 1, "all candidates are known beforehand"


def test_an_interruption_while_compiling_ends_the_search(cache_dir):
    device = Device()
    launcher, tensors = tuned(device, "random")

    def interrupted(kernels):
        raise KeyboardInterrupt

    launcher.ahead = interrupted
    with pytest.warns(UserWarning, match="was interrupted; it runs with the rule's"):
        launcher(*tensors)
    torch.testing.assert_close(tensors[-1], example_1_1(X, W))


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_the_first_call_searches_and_every_call_is_right(cache_dir, method):
    device = Device(lambda c: 1e-3 / c[-1])  # the more warps the better
    launcher, tensors = tuned(device, method)
    assert launcher.search is None and launcher.configuration == launcher.kernel.tuning.rule
    launcher(*tensors)
    torch.testing.assert_close(tensors[-1], example_1_1(X, W))
    search, rule = launcher.search, launcher.kernel.tuning.rule
    assert search.complete and search.start == rule or search.before.start == rule
    assert search.chosen[-2] > rule[-2] and launcher.configuration == search.chosen
    assert search.subject == launcher.kernel.name
    measured = len(device.readings)
    tensors[-1].fill_(77)
    launcher(*tensors)
    torch.testing.assert_close(tensors[-1], example_1_1(X, W))
    assert len(device.readings) == measured, "only the first call measures"
    if method == "descent":
        assert search.before.method == "candidates" and search.path[0] == search.before.chosen
    if method == "halving":
        assert len({t.configuration for t in search.trials if t.round == 1}) == 16


def test_candidates_take_turns_and_noise_keeps_the_rule(cache_dir):
    level = Device()
    launcher, tensors = tuned(level)
    launcher(*tensors)
    assert launcher.search.chosen == launcher.kernel.tuning.rule and "began with" in launcher.search.reason
    candidates = launcher.kernel.tuning.candidates
    assert len(set(level.readings)) == len({(*c[:1], c[-2]) for c in candidates})
    assert level.readings[0] != level.readings[1], "reading by reading, not configuration by configuration"


def test_spilling_configurations_are_out(cache_dir):
    _, kernel = kernel_of(example_1_1, X, W)
    fastest = kernel.tuning.candidates[1]
    name = (fastest[0], fastest[-2])
    device = Device(lambda c: 1e-6 if c == name else 1e-3, spilling={name})
    launcher, tensors = tuned(device)
    launcher(*tensors)
    assert launcher.search.chosen != fastest and math.isinf(launcher.search.costs[fastest])
    assert name not in device.readings


def test_where_everything_spills_the_rule_stays_and_it_is_said(cache_dir):
    device = Device(spilling="all")
    launcher, tensors = tuned(device)
    launcher(*tensors)
    assert launcher.configuration == launcher.kernel.tuning.rule and "spilling" in launcher.search.reason
    torch.testing.assert_close(tensors[-1], example_1_1(X, W))


def test_what_the_compiler_refuses_costs_infinity(cache_dir):
    _, kernel = kernel_of(example_1_1, X, W)
    refused = {(c[0], c[-2]) for c in kernel.tuning.candidates[1:]}
    launcher, tensors = tuned(Device(refused=refused))
    launcher(*tensors)
    assert launcher.configuration == kernel.tuning.rule
    assert sum(math.isinf(cost) for cost in launcher.search.costs.values()) == len(kernel.tuning.candidates) - 1


def test_ctrl_c_leaves_the_rules_configuration_and_no_record(cache_dir):
    for after in (0, 4):
        device = Device(lambda c: 1e-3 / c[-1], interrupted_after=after)
        launcher, tensors = tuned(device, "descent")
        with pytest.warns(UserWarning, match="was interrupted; it runs with the rule's"):
            launcher(*tensors)
        torch.testing.assert_close(tensors[-1], example_1_1(X, W))
        assert not launcher.search.complete and launcher.configuration == launcher.kernel.tuning.rule
        launcher(*tensors)
    assert not list(cache_dir.glob("autotune-*"))


# --- Without a trace --------------------------------------------------------------------------------------------------


def test_a_scatter_that_adds_is_measured_on_a_clone(cache_dir):
    index = torch.tensor([0, 1, 1, 3, 3, 3])

    def function(target, values):
        return target.index_add(0, index, values)

    target, values = torch.randn(5, 40), torch.randn(6, 40)
    compilation = staxlab.explain(function, target, values, target="sm_90", strict_native=True)
    kernel = next(k for k in compilation.kernels if any(a.role == "inout" for a in k.arguments))
    device = Device()
    launcher = TunedLauncher(kernel, load=device.load, timer=device.timer, readings=2, device="pretended", version="0")
    buffers = {"index": index, "target": target, "values": values}
    for argument in kernel.arguments:
        if argument.role == "inout":
            buffers[argument.buffer] = target.clone()
    tensors = [buffers[a.buffer] for a in kernel.arguments]
    assert len(kernel.tuning.candidates) > 1
    launcher(*tensors)
    place = next(k for k, a in enumerate(kernel.arguments) if a.role == "inout")
    torch.testing.assert_close(tensors[place], function(target, values))
    assert len(device.readings) >= 4


def test_a_result_in_the_memory_of_an_input_is_measured_elsewhere(cache_dir):
    def function(x, y):
        return x * 2 + y

    x, y = torch.randn(3, 700), torch.randn(3, 700)
    expected = function(x, y)
    launcher, tensors = tuned(Device(), function=function, inputs=(x, y))
    place = next(k for k, a in enumerate(launcher.kernel.arguments) if a.role == "output")
    tensors[place] = tensors[0]  # in place, as a memory plan may decide
    launcher(*tensors)
    torch.testing.assert_close(tensors[place], expected)
    assert tensors[place].data_ptr() == x.data_ptr()


def test_only_what_must_be_is_cloned():
    _, kernel = kernel_of(example_1_1, X, W)
    out = torch.empty(8)
    assert [a is b for a, b in zip(stand_ins(kernel, [X, W, out]), [X, W, out], strict=True)] == [True] * 3
    whole = torch.empty(8 * 128)
    tensors = [whole.view(8, 128), W, whole[-8:]]
    measured = stand_ins(kernel, tensors)
    assert measured[0] is tensors[0] and measured[2].data_ptr() != tensors[2].data_ptr()


def test_a_kernel_of_nothing_is_not_measured():
    compilation = staxlab.explain(lambda x: x + 1, torch.randn(0, 5), target="sm_90")
    for kernel in compilation.kernels:
        device = Device()
        TunedLauncher(kernel, load=device.load, timer=device.timer)(torch.randn(0, 5), torch.empty(0, 5))
        assert device.readings == []


# --- The record -------------------------------------------------------------------------------------------------------


def fast_second(configuration):
    return 1e-3 / configuration[-1]


def record_file(cache_dir):
    (path,) = cache_dir.glob("autotune-*.json")
    return path


def test_the_finding_is_recorded_and_read_again(cache_dir):
    first, tensors = tuned(Device(fast_second))
    first(*tensors)
    data = json.loads(record_file(cache_dir).read_text().partition("\n")[2])
    assert data["device"] == "pretended" and data["kernel"] == first.kernel.name and data["triton"] == "0"
    device = Device(fast_second)
    second, tensors = tuned(device)
    second(*tensors)
    assert device.readings == [] and second.configuration == first.configuration
    assert second.search.reason == f"recorded: {first.search.reason}"
    assert second.search.trials == first.search.trials and second.search.costs == first.search.costs
    torch.testing.assert_close(tensors[-1], example_1_1(X, W))


def test_infinite_costs_and_the_search_before_survive_the_file(cache_dir):
    _, kernel = kernel_of(example_1_1, X, W)
    fastest = kernel.tuning.candidates[1]
    device = Device(fast_second, spilling={(fastest[0], fastest[-2])})
    first, tensors = tuned(device, "descent")
    first(*tensors)
    again = autotune_record.from_json(json.loads(json.dumps(autotune_record.to_json(first.search))))
    assert again == first.search and again.before == first.search.before
    assert math.inf in again.costs.values() or math.inf in again.before.costs.values()


DAMAGES = {
    "empty": lambda text: "",
    "half": lambda text: text[: len(text) // 2],
    "no JSON": lambda text: "no JSON at all",
    "a list": lambda text: "[1, 2]",
    "another choice": lambda text: text.replace('"reason": "', '"reason": "changed ', 1),
    "without a field": lambda text: text.replace('"chosen"', '"chosem"', 1),
    "another format": lambda text: text.replace(autotune_record.FORMAT, "staxlab-autotune-0"),
    "bytes": lambda text: b"\xff\xfe\x00",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_is_measured_again(cache_dir, damage):
    first, tensors = tuned(Device(fast_second))
    first(*tensors)
    path = record_file(cache_dir)
    changed = damage(path.read_text())
    path.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    device = Device(fast_second)
    second, tensors = tuned(device)
    second(*tensors)
    assert device.readings and second.search.trials == first.search.trials
    third, tensors = tuned(Device())
    third(*tensors)
    assert third.configuration == first.configuration, "the good record took the place of the damaged one"


def test_a_record_that_lies_about_its_choice_does_not_match_its_hash(cache_dir):
    first, tensors = tuned(Device(fast_second))
    first(*tensors)
    path = record_file(cache_dir)
    head, _, content = path.read_text().partition("\n")
    data = json.loads(content)
    data["search"]["chosen"] = data["search"]["start"]
    path.write_text(f"{head}\n{json.dumps(data)}")
    device = Device(fast_second)
    second, tensors = tuned(device)
    second(*tensors)
    assert device.readings


def test_the_key_depends_on_everything_the_finding_does():
    _, kernel = kernel_of(example_1_1, X, W)
    _, other = kernel_of(example_1_1, torch.randn(8, 96), torch.randn(8, 96))
    choices = kernel.tuning.candidates
    keys = {
        autotune_record.key_of(kernel, "candidates", choices, "H200", "3.6"),
        autotune_record.key_of(other, "candidates", choices, "H200", "3.6"),
        autotune_record.key_of(kernel, "halving", choices, "H200", "3.6"),
        autotune_record.key_of(kernel, "candidates", choices[:-1], "H200", "3.6"),
        autotune_record.key_of(kernel, "candidates", choices, "A100", "3.6"),
        autotune_record.key_of(kernel, "candidates", choices, "H200", "3.9"),
    }
    assert len(keys) == 6 and all(len(key) == 40 for key in keys)


def test_a_directory_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(blocked))
    launcher, tensors = tuned(Device(fast_second))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        launcher(*tensors)
    torch.testing.assert_close(tensors[-1], example_1_1(X, W))
    assert launcher.search.complete


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="POSIX permissions")
def test_a_record_that_others_could_have_written_is_not_read(cache_dir):
    first, tensors = tuned(Device(fast_second))
    first(*tensors)
    record_file(cache_dir).chmod(0o666)
    device = Device(fast_second)
    second, tensors = tuned(device)
    second(*tensors)
    assert device.readings


def test_clearing_deletes_records_and_so_does_clearing_the_cache(cache_dir):
    for clear in (autotune_record.clear, cache.clear):
        launcher, tensors = tuned(Device(fast_second))
        launcher(*tensors)
        assert record_file(cache_dir)
        clear()
        assert not list(cache_dir.glob("autotune-*"))


# --- Options, build, artifact -----------------------------------------------------------------------------------------


def test_the_option_names_a_method():
    assert Options(autotune=True).search_method == "candidates" and Options().search_method is None
    assert [Options(autotune=method).search_method for method in SEARCH_METHODS] == list(SEARCH_METHODS)
    for wrong in ("annealing", 1, 0, None, ["descent"], ""):
        with pytest.raises(OptionError, match="autotune must be True or False, or one of 'candidates'"):
            Options(autotune=wrong)


def test_building_with_the_option_makes_launchers_that_search():
    compilation, _ = kernel_of(example_1_1, X, W)
    launchers = build.build(compilation.kernels, Options(autotune="halving"), compilation.device)
    (launcher,) = launchers.values()
    assert isinstance(launcher, TunedLauncher) and launcher.method == "halving"
    (plain,) = build.build(compilation.kernels, Options(), compilation.device).values()
    assert not isinstance(plain, TunedLauncher) and spills_of(plain) == 0


def test_the_artifact_has_the_search_that_prints_and_draws(cache_dir):
    compilation, _ = kernel_of(example_1_1, X, W)
    launcher, tensors = tuned(Device(fast_second))
    made = artifact.Artifact(
        lambda inputs: (), lambda inputs: (), "a GPU", lambda inputs: None, compilation.wrapper,
        launchers={launcher.kernel.name: launcher},
    )  # fmt: skip
    assert made.searches == {} and "launch-configuration" not in str(made)
    launcher(*tensors)
    (search,) = made.searches.values()
    assert search is launcher.search and f"launch-configuration({launcher.kernel.name})" in str(made)
    assert "drawing failed" not in search._repr_mimebundle_()["text/html"]
    decision = search.decision
    assert decision.choice == search.space.words(search.chosen) and decision.candidates


# --- Whole regions ----------------------------------------------------------------------------------------------------

REGIONS = {
    "two kernels": (lambda x, w: (x.softmax(-1), (x * w).sum(0)), ()),
    "split in two": (lambda x, w: (x * x).sum(), ()),
    "scatter": (lambda x, w: x.index_add(0, torch.tensor([0, 2, 2]), w[:3]) + 1, ()),
    "in place": (lambda x, w: x.mul_(2).add_(w).sum(-1), (0,)),
    "temporaries that share memory": (lambda x, w: ((x @ w).exp().cumsum(0) @ w).relu().sum(1), ()),
    "library call between": (lambda x, w: torch.sort(torch.relu(x + w) * 2)[0] + 1, ()),
}


@pytest.mark.parametrize("method", ["candidates", "descent"])
@pytest.mark.parametrize("name", REGIONS)
def test_whole_regions_search_without_a_trace(cache_dir, name, method):
    function, written = REGIONS[name]
    x, w = (torch.randn(16, 16, generator=torch.Generator().manual_seed(k)) for k in (2, 3))
    compilation = staxlab.explain(function, x.clone(), w.clone(), target="sm_90", strict_native=True)
    device = Device(lambda c: 1e-3 / c[-1])
    launchers = {
        kernel.name: TunedLauncher(
            kernel, method, load=device.load, timer=device.timer, readings=2, device="pretended", version="0"
        )
        for kernel in compilation.kernels
        if kernel.language == "triton"
    }
    region = artifact.load(compilation.wrapper, launchers)
    constants = _tensor_constants(compilation)
    for _ in range(2):
        given, twins = [x.clone(), w.clone()], [x.clone(), w.clone()]
        expected = function(*twins)
        found = region.call([*given, *constants])
        for a, b in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-4)
        for place, (a, b) in enumerate(zip(given, twins, strict=True)):
            torch.testing.assert_close(a, b, rtol=1e-6 if place in written else 0, atol=1e-6 if place in written else 0)
    assert set(region.searches) == set(launchers) and all(s.complete for s in region.searches.values())
