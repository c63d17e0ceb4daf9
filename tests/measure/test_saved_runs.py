"""Saved runs: every number is one of the file, missing files say so, and damaged ones are one clear message."""

from __future__ import annotations

import json

import pytest

from staxlab import view
from staxlab.errors import OptionError
from staxlab.measure.saved_runs import NotMeasured, SavedRun, read_result, saved_run
from staxlab.view.document import SIZE_CAP
from tests.view.reading import read, references, stripped

COMMITTED = ("gpu_h200", "training_h200", "gpu_h200_sweep", "splitting_h200")
MACHINE = {
    "machine": {"processor": "A processor", "device": "A card"},
    "versions": {"torch": "2.0"},
    "date": "2026-01-01",
}
MACHINE |= {"command": "python -m benchmarks.example"}


def peers(**seconds):
    return {peer: {"median_s": median, "interval_s": [low, high]} for peer, (median, low, high) in seconds.items()}


def written(directory, **record):
    record = {"format": "staxlab-gpu-benchmark-1"} | record
    (directory / "example.json").write_text(json.dumps(MACHINE | record))
    return saved_run("example", directory=directory)


@pytest.mark.parametrize("name", COMMITTED)
def test_a_committed_run_draws_itself_with_machine_versions_and_every_case(name):
    run = saved_run(name)
    assert isinstance(run, SavedRun) and "NVIDIA H200" in run.where and "PyTorch 2." in run.where
    bundle = run._repr_mimebundle_()
    html, text = bundle["text/html"], bundle["text/plain"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and references(html) == []
    assert view.html(run) == html
    words = stripped(html)
    for case in read_result(name)["cases"]:
        title = case.get("title", case["case"])
        assert title in text and title in read(words).text
    assert read_result(name)["command"] in text
    assert "<svg" in html and "aria-label" in html and "var(--jp-layout-color0" in html


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_plot_has_its_axes_named_and_its_numbers_in_words(theme):
    from staxlab.view.saved_runs import svg_text

    run = saved_run("gpu_h200")
    drawn = svg_text(run, theme)
    for words in (
        "effective bandwidth",
        "bandwidth (share)",
        "time of the other",
        "torch.compile",
        run.title,
        "NVIDIA H200",
    ):
        assert words in drawn, words
    assert run.panels[0].cell(run.cases[0], "staxlab") in drawn  # in the description


def test_shares_and_ratios_are_those_of_the_file(tmp_path):
    case = {
        "title": "one",
        "case": "one",
        "least_bytes": 600,
        "peers": peers(staxlab=(2.0, 1.5, 3.0), torch_compile=(4.0, 3.0, 6.0), other=(1, 1, 1)),
    }
    run = written(tmp_path, copy_bandwidth=100.0, l2_bytes=100, cases=[case])
    share, ratio = run.panels
    (own,), (theirs,) = share.of("one", "staxlab"), share.of("one", "torch.compile")
    assert (own.value, own.low, own.high) == (3.0, 2.0, 4.0)
    assert (theirs.value, theirs.low, theirs.high) == (1.5, 1.0, 2.0)
    (speed,) = ratio.of("one", "torch.compile")
    assert (speed.value, speed.low, speed.high) == (2.0, 1.0, 4.0)
    assert share.series == ("staxlab", "torch.compile"), "peers without a name are left out"
    assert "below four times" not in str(run)
    assert "below four times" in str(written(tmp_path, copy_bandwidth=100.0, l2_bytes=200, cases=[case]))


def test_a_sweep_tells_the_rules_own_configuration_from_the_others(tmp_path):
    tried = [
        {"blocks": {"XBLOCK": 8}, "num_warps": 4, "median_s": 3.0},
        {"blocks": {"XBLOCK": 16}, "num_warps": 4, "median_s": 2.0},
        {"blocks": {"XBLOCK": 8}, "num_warps": 8, "median_s": 5.0},
    ]
    case = {"title": "one", "case": "one", "rules": [{"XBLOCK": 8}, 4], "configurations": tried}
    (panel,) = written(tmp_path, cases=[case]).panels
    assert panel.cell("one", panel.series[0]) == "1.5"
    assert panel.cell("one", "others") == "1 to 2.5 (2 of them)"


def test_what_is_not_there_says_so_and_is_false(tmp_path):
    missing = saved_run("products_h200", "python -m benchmarks.something", directory=tmp_path)
    assert isinstance(missing, NotMeasured) and not missing and read_result("products_h200", tmp_path) is None
    text = str(missing)
    assert "have not been measured yet" in text and "python -m benchmarks.something" in text
    assert "have not been measured yet" in read(missing._repr_mimebundle_()["text/html"]).text


def comparison(**seconds):
    return {
        "timings": [
            {"name": name, "median_s": value, "median_interval_s": {"low": value / 2, "high": value * 2}}
            for name, value in seconds.items()
        ]
    }


OTHERS = {
    "searches": (
        {
            "format": "staxlab-autotune-benchmark-1",
            "cases": [
                {
                    "title": "one",
                    "kernels": [
                        {
                            "name": "k",
                            "searches": [
                                {"method": "descent", "ratio": 1.25, "interval": [1.0, 1.5], "compilations": 7}
                            ],
                        }
                    ],
                }
            ],
        },
        {("one", "descent"): "1.25 [1, 1.5]"},
    ),
    "graphs": (
        {
            "format": "staxlab-cuda-graphs-1",
            "device_present": True,
            "region_8_elements": comparison(eager=4e-6, staxlab_graphs=2e-6),
            "chains": {"1": {"comparison": comparison(staxlab=8e-6)}, "2": {"comparison": comparison(staxlab=1e-5)}},
            "costs": {"launch_s": 2e-6, "graph_s": 3e-6},
        },
        {
            ("x * 2 + 1, 8 elements", "staxlab, CUDA graphs"): "2 [1, 4]",
            ("2 kernels in a row", "staxlab"): "10 [5, 20]",
        },
    ),
    "product models": (
        {
            "format": "staxlab-product-models-benchmark-1",
            "cases": [
                {
                    "order": 64,
                    "operations": 8e12,
                    "numbering_model_bytes": {"1": {"4": 2**31}, "2": {"4": 2**30}, "least": 1},
                    "times": {
                        "library": {"median_s": 2.0, "interval_s": [1.0, 4.0]},
                        "group 4": {"median_s": 4.0, "interval_s": None},
                    },
                }
            ],
        },
        {("n = 64, library", "library"): "4 [2, 8]", ("n = 64, group 4", "template"): "2"},
    ),
    "products": (
        {
            "format": "staxlab-gpu-matmul-1",
            "measured": True,
            "cases": [
                {
                    "case": "A B",
                    "operations": 8e12,
                    "peers": peers(eager=(4.0, 2.0, 8.0), template=(2.0, 2.0, 2.0)) | {"failed": {"problem": "none"}},
                }
            ],
        },
        {("A B", "eager"): "2 [1, 4]", ("A B", "template"): "4"},
    ),
    "attention": (
        {
            "format": "staxlab-attention-1",
            "measured": True,
            "cases": [
                {
                    "case": "causal, forward",
                    "direction": "forward",
                    "work": 8e12,
                    "peers": peers(staxlab=(2.0, 1.0, 4.0), flex=(4.0, 4.0, 4.0)) | {"sdpa": {"problem": "none"}},
                },
                {"case": "decode", "direction": "decode", "work": 6e12, "peers": peers(sdpa=(3.0, 3.0, 3.0))},
            ],
        },
        {("causal, forward", "staxlab"): "4 [2, 8]", ("causal, forward", "FlexAttention"): "2"},
    ),
    "attention on a CPU": (
        {
            "format": "staxlab-attention-cpu-1",
            "threads": 2,
            "cases": [
                {
                    "case": "causal",
                    "gflops": 64.0,
                    "ratios": {
                        "sdpa": {"median": 1.5, "interval": {"low": 1.25, "high": 2.0}},
                        "flex": {"median": 3.0, "interval": None},
                    },
                },
                {"case": "window", "gflops": 16.0, "ratios": {}},
            ],
        },
        {("causal", "PyTorch's own kernel"): "1.5 [1.25, 2]", ("causal", "FlexAttention"): "3"},
    ),
    "systems": (
        {
            "format": "staxlab-systems-times-1",
            "titles": {"xla": "XLA", "tvm": "TVM"},
            "cases": [
                {
                    "title": "Example 1.1: a sum",
                    "size": [4, 8],
                    "peers": [
                        {
                            "peer": "eager",
                            "problem": None,
                            "first_call_s": 1.0,
                            "speedups_over_eager": [],
                            "details": {"page_faults": 1500},
                        },
                        {
                            "peer": "xla",
                            "problem": None,
                            "first_call_s": 0.5,
                            "details": {"page_faults": 0},
                            "speedups_over_eager": [
                                {"median": 2.0, "interval": {"low": 1.5, "high": 2.5}},
                                {"median": 3.0, "interval": {"low": 2.0, "high": 4.0}},
                                {"median": 9.0, "interval": None},
                            ],
                        },
                        {
                            "peer": "tvm",
                            "problem": "missing: no",
                            "first_call_s": None,
                            "speedups_over_eager": [],
                            "details": {},
                        },
                    ],
                }
            ],
        },
        {("Example 1.1, 4x8", "XLA"): "2 [1.5, 4]"},
    ),
    "hardware models": (
        {
            "format": "staxlab-hardware-models-benchmark-1",
            "device_present": True,
            "flight": [
                {
                    "in_flight": 4096.0,
                    "instances": 1,
                    "step": 128,
                    "predicted_bandwidth": 1e12,
                    "bytes": 2e12,
                    "median_s": 2.0,
                    "interval_s": [1.0, 4.0],
                }
            ],
            "sectors": {
                "variants": {"as tiled": {"efficiency": 1.0, "bytes": 3e12, "median_s": 1.0, "interval_s": [1.0, 1.0]}}
            },
            "occupancy": [{"agree": True}],
            "summary": {"latency_s": 6e-7},
        },
        {
            ("4.1 KB in flight: 1 x 128", "Little's law"): "1",
            ("4.1 KB in flight: 1 x 128", "measured"): "1 [0.5, 2]",
            ("x.t() + y as tiled, 100% of sectors needed", "measured"): "3",
        },
    ),
}


def test_a_saved_roofline_is_a_run_too(tmp_path):
    from staxlab.measure.roofline import Ceiling, Roofline

    ceilings = (
        Ceiling("read", "bandwidth", 4e12, rounds=(3.5e12, 4e12)),
        Ceiling("L2 read", "bandwidth", 8e12, "", "L2", 1 << 20, None, (8e12,)),
        Ceiling("matmul bfloat16", "throughput", 7e14, rounds=(7e14, 6.9e14)),
    )
    saved = Roofline(ceilings, machine=MACHINE["machine"], command="c", date="2026-01-01", notes=("a remark",))
    saved.save(tmp_path / "example.json")
    run = saved_run("example", directory=tmp_path)
    rates, products = run.panels
    assert (rates.cell("read", "bandwidth"), rates.cell("L2 read", "bandwidth")) == ("4e+03 [3.5e+03, 4e+03]", "8e+03")
    assert products.cell("matmul bfloat16", "rate") == "700 [690, 700]"
    assert "a remark" in run.notes and "drawing failed" not in run._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("kind", OTHERS)
def test_every_kind_of_run_that_a_command_writes_is_drawn(kind, tmp_path):
    record, expected = OTHERS[kind]
    run = written(tmp_path, **record)
    for (case, series), cell in expected.items():
        assert run.panels[0].cell(case, series) == cell
    assert "drawing failed" not in run._repr_mimebundle_()["text/html"]


def test_attention_tells_rates_from_bandwidths_and_compares_times(tmp_path):
    run = written(tmp_path, **OTHERS["attention"][0])
    rate, bandwidth, ratio = run.panels
    assert bandwidth.cell("decode", "PyTorch's own kernel") == "2" and not rate.of("decode", "PyTorch's own kernel")
    assert ratio.cell("causal, forward", "FlexAttention") == "2 [1, 4]" and ratio.series == ("FlexAttention",)


def test_a_series_with_a_zero_has_no_geometric_mean(tmp_path):
    record = json.loads(json.dumps(OTHERS["systems"][0]))
    record["cases"][0]["peers"] = record["cases"][0]["peers"][1:]
    text = str(written(tmp_path, **record))
    assert (
        "faults of XLA, thousands: 0 to 0;" in text.replace("\n", ";")
        and "first call of XLA, s: 0.5 to 0.5, geo" in text
    )


def test_systems_have_first_calls_and_name_who_is_missing(tmp_path):
    run = written(tmp_path, **OTHERS["systems"][0])
    assert run.panels[1].cell("Example 1.1, 4x8", "XLA") == "0.5" and run.panels[1].series == ("XLA",)
    assert run.panels[2].cell("Example 1.1, 4x8", "eager") == "1.5"
    assert "Example 1.1, 4x8, TVM: missing: no" in str(run)


@pytest.mark.parametrize("told", [{"measured": False}, {"device_present": False}])
def test_a_trial_without_a_device_is_no_measurement(told, tmp_path):
    record, _ = OTHERS["products"]
    assert not written(tmp_path, **record | told)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"format": "of another kind"}',
        '{"format": "staxlab-training-1", "cases": [{"peers": {}}]}',
        '{"format": "staxlab-splitting-benchmark-1", "cases": []}',
    ],
)
def test_a_file_that_is_no_run_is_one_clear_message(tmp_path, content):
    (tmp_path / "broken.json").write_text(content)
    with pytest.raises(OptionError, match="broken") as caught:
        saved_run("broken", directory=tmp_path)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["", "../results/gpu_h200", "/etc/passwd"])
def test_a_name_is_no_path(name):
    with pytest.raises(OptionError, match="no name of a result"):
        saved_run(name)


def test_the_formats_are_those_that_the_commands_write():
    from benchmarks import attention, autotune, cuda_graphs, gpu, hardware_models, splitting
    from benchmarks.systems import __main__ as systems
    from staxlab.measure.saved_runs import _reader

    assert _reader({"format": systems.TIMES_FORMAT, "cases": []}) is not None
    for command in (attention, autotune, cuda_graphs, gpu, hardware_models, splitting):
        assert _reader({"format": command.FORMAT, "cases": []}) is not None, command.__name__
