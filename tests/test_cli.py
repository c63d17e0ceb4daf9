"""The command line: what it prints, what it refuses, and with which exit status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from staxlab import cli
from staxlab.errors import BuildError, OptionError

ROOT = Path(__file__).resolve().parent.parent
SOFTMAX = "F.softmax(torch.randn(64, 1000), -1)"


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """(status, standard output, standard error) of a command run in this process."""
    try:
        status = cli.main(arguments)
    except SystemExit as stop:  # argparse
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def shell(command: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "-c", command.replace("staxlab", f"{sys.executable} -m staxlab.cli", 1)],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip


def test_version(capsys):
    status, out, _ = run(capsys, "--version")
    assert status == 0 and re.fullmatch(r"staxlab \d+\.\d+\.\d+\S*\n", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["explode"], "invalid choice: 'explode'"),
        (["tour", "--size", "12by4"], "'12by4' is not ROWSxCOLUMNS"),
        (["tour", "--size", "0x4"], "'0x4' is not ROWSxCOLUMNS"),
        (["tour", "--html", "/"], "/ is a directory"),
        (["explain"], "the following arguments are required: -c"),
        (["locate"], "the following arguments are required: -c"),
        (["locate", "-c", SOFTMAX, "--samples", "0"], "at least one input is tried"),
        (["locate", "-c", SOFTMAX, "--script", "/"], "/ is a directory"),
        (["locate", "-c", "torch.ones(2) + torch.ones(3)"], "PyTorch itself cannot run this"),
        (["explain", "-c", "F.softmax("], "is not a Python expression"),
        (["explain", "-c", "np.ones(3)"], "the name 'np' is not known here"),
        (["explain", "-c", SOFTMAX, "--stage", "loop"], "there is no stage 'loop': did you mean loops?"),
        (
            ["explain", "-c", SOFTMAX, "--target", "sm_91"],
            "code for sm_91 is not generated yet; known: cpu, cuda, sm_80",
        ),
        (["explain", "-c", SOFTMAX, "--stage", "sass"], "sass is machine code of a GPU, and the target is cpu"),
        (["explain", "-c", SOFTMAX, "--target", "gpu"], "unknown target 'gpu'; did you mean 'cuda'?"),
        (["explain", "-c", "torch.randn(3) @ torch.randn(4)"], "PyTorch itself cannot run this: RuntimeError"),
        (["cache", "burn"], "invalid choice: 'burn'"),
        (["reproduce", "table-13.9"], "there is nothing called 'table-13.9' to reproduce"),
        (["reproduce", "add", "--scale", "0"], "a scale is positive, not 0"),
        (["reproduce", "add", "--scale", "1e7"], "are free"),
        (["reproduce", "add", "--device", "tpu"], "there is no device 'tpu' here"),
        (["reproduce", "--from", "tests"], "tests holds no reproduction"),
        (["reproduce", "--out", "/dev/null/here"], "cannot be written"),
    ],
)
def test_a_wrong_request_ends_with_status_2_and_a_clear_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    lines = err.splitlines()
    last = [line for line in lines if not line.startswith("  ")][-1]  # where and the remedy follow, a line each
    assert message in last and all(re.match("  (at|remedy: )", line) for line in lines[lines.index(last) + 1 :]), err
    assert "Traceback" not in err


def test_a_failure_and_its_remedy_are_a_line_each_and_debug_shows_all(capsys, monkeypatch):
    def fail(options):
        raise BuildError("no C++ compiler was found", remedy="install g++")

    monkeypatch.setattr(cli, "_doctor", fail)
    assert run(capsys, "doctor") == (1, "", "staxlab: no C++ compiler was found\n  remedy: install g++\n")
    monkeypatch.setenv("STAXLAB_DEBUG", "1")
    with pytest.raises(BuildError):
        cli.main(["doctor"])


def test_an_unforeseen_error_is_one_line_too(capsys, monkeypatch):
    monkeypatch.setattr(cli, "_doctor", lambda options: {}["surprise\nin two lines"])
    status, _, err = run(capsys, "doctor")
    assert status == 1 and err.count("\n") == 1 and err.startswith("staxlab: KeyError: ")


def test_an_interruption_is_not_a_traceback(capsys, monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_doctor", interrupt)
    assert run(capsys, "doctor") == (130, "", "staxlab: interrupted\n")


def test_a_closed_pipe_is_not_an_error():
    result = shell("set -o pipefail; staxlab doctor | true; echo ${PIPESTATUS[0]}", PYTHONUNBUFFERED="1")
    assert (result.stdout, result.stderr) == ("0\n", "")


def test_explain_shows_every_stage_under_its_heading(capsys):
    status, out, err = run(capsys, "explain", "-c", SOFTMAX)
    assert (status, err) == (0, "")
    assert out.startswith("a = torch.randn(64, 1000)\ndef f(a):\n    return F.softmax(a, -1)\n\n")
    headings = re.findall(r"^(.+) \(Sections? [\d. and]+\), [\d.]+ ms$", out, flags=re.M)
    assert headings == [
        "Captured graph", "Graph transformation", "Operator graph", "Loop IR", "Schedule", "Kernels", "Wrapper",
    ]  # fmt: skip


def test_explain_shows_one_stage_or_several(capsys):
    _, kernels, _ = run(capsys, "explain", "-c", SOFTMAX, "--stage", "kernels")
    assert "void" in kernels and "def f(a)" not in kernels
    _, both, _ = run(capsys, "explain", "-c", SOFTMAX, "--stage", "schedule", "--stage", "kernels")
    assert both.endswith(kernels) and "reduction" in both.removesuffix(kernels)


EVERY_STAGE = "capture graph transforms operators loops schedule wrapper decisions traffic".split()


@pytest.mark.parametrize("stage", EVERY_STAGE)
def test_every_stage_prints_something_of_its_own(capsys, stage):
    status, out, _ = run(capsys, "explain", "-c", SOFTMAX, "--stage", stage)
    assert status == 0 and len(out.strip()) > 20 and "object at 0x" not in out


def test_explain_shows_machine_code(capsys):
    status, out, _ = run(capsys, "explain", "-c", SOFTMAX, "--stage", "assembly")
    assert status == 0 and "(asm)" in out and re.search(r"\bret\b", out)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("stage", ["assembly", "asm"])
def test_assembly_has_two_names_on_every_target(capsys, stage, target):
    if target != "cpu":
        pytest.importorskip("triton")
    status, out, err = run(capsys, "explain", "-c", SOFTMAX, "--stage", stage, "--target", target)
    assert (status, err) == (0, "") and ("(asm)" in out if target == "cpu" else ".target sm_90" in out)


def test_help_of_explain_lists_every_stage_and_target_and_says_what_strict_refuses(capsys):
    from staxlab.options import GPU_SPECS

    status, out, _ = run(capsys, "explain", "--help")
    assert status == 0
    for name in (*cli._stage_names(), "cpu", "cuda", *GPU_SPECS):
        assert re.search(rf"\b{name}\b", out.split("stages, in order:")[1]), name
    assert "library" in out and "fallback" in out and "convolution" in out


def test_the_stages_of_a_region_with_gradients(capsys):
    expression = "(torch.ones(3, requires_grad=True) * 2).tanh()"
    status, out, _ = run(
        capsys, "explain", "-c", expression, "--stage", "joint", "--stage", "partition", "--stage", "backward"
    )
    assert status == 0 and "[BW]" in out and "partition by min cut" in out and "backward for cpu" in out
    status, out, err = run(capsys, "explain", "-c", "torch.ones(3) * 2", "--stage", "partition")
    assert (status, out) == (1, "") and "no input requires grad" in err and "requires_grad=True" in err


def test_strict_accepts_library_calls(capsys):
    status, out, _ = run(
        capsys, "explain", "-c", "torch.randn(4, 4).sort()[0]", "--strict", "--stage", "kernels"
    )
    assert status == 0 and "extern" in out and "library call, on purpose" in out


def test_a_fallback_says_in_the_kernel_why_it_is_one(capsys):
    _, out, _ = run(capsys, "explain", "-c", "torch.ones(3).to(torch.complex64) * 2", "--stage", "kernels")
    assert "fallback: mul has a lowering, but not for complex64" in out


def test_explain_names_a_directory_that_does_not_exist(capsys, tmp_path):
    page = tmp_path / "one" / "two" / "out.html"
    for arguments in (["explain", "-c", SOFTMAX], ["tour", "--size", "4x4"]):
        status, out, err = run(capsys, *arguments, "--html", str(page))
        assert (status, out) == (2, "") and not page.parent.exists()
        assert f"there is no directory {tmp_path / 'one'}\n  remedy: mkdir -p {page.parent}\n" in err


def test_explain_generates_for_a_gpu_that_is_not_here(capsys):
    status, out, _ = run(capsys, "explain", "-c", SOFTMAX, "--stage", "kernels", "--target", "sm_90")
    assert status == 0 and "@triton.jit" in out


def test_explain_closes_over_modules(capsys):
    status, out, err = run(capsys, "explain", "-c", "nn.LayerNorm(8)(torch.randn(4, 8))", "--stage", "operators")
    assert (status, err) == (0, "") and "aten" in out


def test_explain_writes_a_page(capsys, tmp_path):
    page = tmp_path / "out.html"
    status, _, err = run(capsys, "explain", "-c", SOFTMAX, "--stage", "schedule", "--html", str(page))
    assert (status, err) == (0, f"wrote {page}\n")
    text = page.read_text()
    assert "data-origins" in text and "softmax" in text


def test_explain_refuses_a_place_it_cannot_write_before_compiling(capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    status, out, err = run(capsys, "explain", "-c", SOFTMAX, "--html", str(blocked / "out.html"))
    assert (status, out) == (2, "") and "cannot be written" in err


def test_what_is_not_compiled_is_noted_and_strict_refuses_it(capsys):
    expression = "torch.special.bessel_j0(torch.ones(3)) + 1"
    status, out, err = run(capsys, "explain", "-c", expression, "--stage", "schedule")
    assert status == 0 and err.startswith("note: ") and "bessel_j0" in err
    status, out, err = run(capsys, "explain", "-c", expression, "--strict")
    assert (status, out) == (1, "") and "bessel_j0" in err
    what, where, remedy = err.splitlines()
    assert where.startswith("  at <one-liner>") and remedy.startswith("  remedy: ")
    assert "bessel_j0 has no lowering" in what


def test_tour_tells_the_whole_story(capsys, tmp_path):
    page = tmp_path / "tour.html"
    status, out, err = run(capsys, "tour", "--size", "64x128", "--html", str(page))
    assert (status, err) == (0, "")
    for expected in (
        "torch.relu(x + w)", "Captured graph", "Loop IR", "Kernels", "Machine code", "ready to run", "@triton.jit",
        "sm_90", "Memory traffic", "2N + n", "rounding bound", "times as fast as eager", str(page),
    ):  # fmt: skip
        assert expected in out, expected
    assert "data-origins" in page.read_text()


def test_tour_says_how_to_see_the_rest_and_where_the_kernel_came_from(capsys, cache_dir):
    from staxlab import tour
    from staxlab.runtime import build

    run(capsys, "cache", "clear")
    build._loaded.clear()
    _, cold, _ = run(capsys, "tour", "--size", "24x40")
    build._loaded.clear()
    _, warm, _ = run(capsys, "tour", "--size", "24x40", "--all")
    assert "compiled now" in cold and "found compiled, in the disk cache" in warm
    assert re.search(r"^\.\.\. \d+ more lines: staxlab tour --all", cold, flags=re.M)
    assert "more lines" not in warm and len(warm.splitlines()) > len(cold.splitlines())
    assert tour.LISTING_HEAD == 40


EXTRAS_ONLY = (
    "IPython ipykernel ipywidgets jupyterlab nbconvert nbclient nbformat matplotlib graphviz pygments triton scipy "
    "sympy jax pytest hypothesis yaml playwright"
).split()


@pytest.mark.parametrize("command", [["tour", "--size", "64x128", "--html"], ["explain", "-c", SOFTMAX, "--html"]])
def test_the_core_needs_no_extra(tmp_path, command):
    """A server with a GPU often has no IPython, a laptop no Triton: what does not need them must work without."""
    page = tmp_path / "page.html"
    program = (
        f"import sys\nfor name in {EXTRAS_ONLY!r}: sys.modules[name] = None\n"
        f"from staxlab.cli import main\nsys.exit(main({[*command, str(page)]!r}))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "data-origins" in page.read_text()
    if command[0] == "tour":
        assert "left out" in result.stdout and "staxlab[gpu]" in result.stdout


def test_doctor_prints_json_for_a_script(capsys):
    status, out, _ = run(capsys, "doctor", "--json")
    report = json.loads(out)
    assert status == (0 if report["healthy"] else 1)
    assert {"piece", "status", "found", "remedy"} == set(report["findings"][0])


def test_cache_reports_and_empties_itself_alone(capsys, cache_dir):
    (cache_dir / "thesis.tex").write_text("mine")
    (cache_dir / "photos").mkdir()
    run(capsys, "explain", "-c", "torch.ones(3) + 41.5", "--stage", "schedule")
    status, full, _ = run(capsys, "cache", "info")
    entries = int(re.fullmatch(rf"{cache_dir}: (\d+) entries, [\d.]+ MiB\n", full).group(1))
    assert status == 0 and entries > 0
    assert run(capsys, "cache", "clear") == (0, f"removed {full}", "")
    assert run(capsys, "cache", "info")[1].startswith(f"{cache_dir}: 0 entries")
    assert sorted(path.name for path in cache_dir.iterdir()) == ["photos", "thesis.tex"]


@pytest.fixture
def quick_roofline(monkeypatch):
    """A machine whose limits are known at once; Example 1.1 on it is small."""
    from staxlab import tour
    from staxlab.measure import roofline, size_sweep

    def measure(progress, quick, device, levels):
        progress(0.0, "copying")
        progress(1.0, "done")
        assert quick and levels and device == "cpu"
        ceilings = (
            roofline.Ceiling("copy", "bandwidth", 5e10),
            roofline.Ceiling("L2 copy", "bandwidth", 9e10, "", "L2", 1 << 21),
            roofline.Ceiling("matmul float32", "throughput", 4e11),
        )
        return roofline.Roofline(ceilings)

    def sweep(progress, quick, device):
        progress(1.0, "working sets, round 1 of 1")
        sizes = tuple(4096 << k for k in range(8))
        return size_sweep.SizeSweep((size_sweep.SweepCurve("read", 1, sizes, ((1e11, 2e11),) * 8),))

    place = tour.place
    small = lambda record, readings, device: place(record, 64, 128, readings=3, device=device)  # noqa: E731
    monkeypatch.setattr(roofline, "measure", measure)
    monkeypatch.setattr(size_sweep, "sweep", sweep)
    monkeypatch.setattr(tour, "place", small)
    monkeypatch.setattr(tour, "place_in_cache", lambda record, readings, device: record)


def test_roofline_writes_data_and_pictures(capsys, tmp_path, quick_roofline):
    from staxlab.measure.roofline import Roofline

    status, out, err = run(capsys, "roofline", "--quick", "--out", str(tmp_path / "here"))
    assert status == 0 and "50 GB/s" in out and "Example 1.1, eager" in out and "Bandwidth by working set" in out
    assert "copying" in err and "working sets" in err and "finished" in err and "wrote" in err
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == [
        "roofline.html", "roofline.json", "roofline.png", "roofline.svg", "roofline_sizes.svg",
    ]  # fmt: skip
    saved = Roofline.load(tmp_path / "here" / "roofline.json")
    eager, compiled = saved.points
    elements, rows = 64 * 128, 64
    assert (eager.nbytes, compiled.nbytes) == (4 * (8 * elements + rows), 4 * (2 * elements + rows))
    assert eager.operations == compiled.operations == 4 * elements
    assert (eager.working_set, compiled.working_set) == (16 * elements, 4 * (2 * elements + rows))
    assert saved.level_of(eager) == "L2" and saved.sweep.curves[0].threads == 1
    assert "Example 1.1" in (tmp_path / "here" / "roofline.svg").read_text()
    page = (tmp_path / "here" / "roofline.html").read_text()
    assert "sx-roofline" in page and "Example 1.1" in page and "working set (KiB)" in page


def test_roofline_prints_json_and_draws_it_again(capsys, tmp_path, quick_roofline, monkeypatch):
    from staxlab.measure.roofline import Roofline

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # pictures take long, and have a test of their own
    file = tmp_path / "deep" / "mine.json"
    status, out, _ = run(capsys, "roofline", "--quick", "--json", "--out", str(file))
    assert status == 0 and Roofline.from_json(json.loads(out)) == Roofline.load(file)
    status, out, err = run(capsys, "roofline", "--from", str(file), "--out", str(tmp_path / "again"))
    assert status == 0 and "Example 1.1, compiled" in out and "copying" not in err
    assert Roofline.load(tmp_path / "again" / "roofline.json") == Roofline.load(file)
    before = file.stat().st_mtime_ns
    assert run(capsys, "roofline", "--from", str(file), "--out", str(file))[0] == 0
    assert file.stat().st_mtime_ns == before and list(file.parent.iterdir()) == [file]


def test_roofline_of_a_data_sheet(capsys):
    status, out, _ = run(capsys, "roofline", "--nominal", "H100 SXM")
    assert status == 0 and "bfloat16 295.2" in out and "3.35 TB/s" in out
    status, _, err = run(capsys, "roofline", "--nominal", "abacus")
    assert status == cli.BAD_REQUEST and "no data sheet of 'abacus'" in err and "H200 SXM" in err


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": "staxlab-roofline-2"}', '{"format": "another"}'])
def test_a_file_that_holds_no_roofline_is_one_clear_message(capsys, tmp_path, content):
    file = tmp_path / "roof.json"
    file.write_text(content)
    status, out, err = run(capsys, "roofline", "--from", str(file))
    assert status == cli.BAD_REQUEST and "holds no roofline" in err and not out
    assert "Traceback" not in err


def test_what_is_read_is_not_measured(capsys, tmp_path):
    assert run(capsys, "roofline", "--from", str(tmp_path / "no.json"))[0] == cli.BAD_REQUEST
    for more in (("--quick",), ("--device", "cuda"), ("--nominal", "H100 SXM")):
        status, _, err = run(capsys, "roofline", "--from", "x.json", *more)
        assert status == cli.BAD_REQUEST and "measure nothing" in err


@pytest.mark.parametrize("when", ["levels", "sweep", "placing"])
def test_an_interrupted_roofline_writes_what_was_measured(capsys, tmp_path, quick_roofline, monkeypatch, when):
    from dataclasses import replace

    from staxlab import tour
    from staxlab.measure import roofline, size_sweep

    def stop(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    if when == "levels":
        whole = roofline.measure
        monkeypatch.setattr(roofline, "measure", lambda *a, **k: replace(whole(*a, **k), complete=False))
    monkeypatch.setattr(*((size_sweep, "sweep", stop) if when != "placing" else (tour, "place", stop)))
    status, out, err = run(capsys, "roofline", "--quick", "--out", str(tmp_path))
    assert status == cli.INTERRUPTED and "interrupted" in out and "interrupted" in err
    found = roofline.Roofline.load(tmp_path / "roofline.json")
    assert not found.complete and found["copy"].value == 5e10 and not found.points
    assert (found.sweep is not None) == (when == "placing")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_interrupted_start_leaves_nothing(capsys, tmp_path, monkeypatch):
    from staxlab.measure import roofline

    def stop(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(roofline, "measure", stop)
    status, out, err = run(capsys, "roofline", "--out", str(tmp_path / "here"))
    assert status == cli.INTERRUPTED and not out and not (tmp_path / "here").exists()


def test_roofline_without_matplotlib_still_writes_the_data(capsys, tmp_path, quick_roofline, monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"] + ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    status, _, err = run(capsys, "roofline", "--quick", "--out", str(tmp_path))
    assert status == 0 and "no pictures were drawn" in err and "staxlab[notebook]" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["roofline.html", "roofline.json"]


def test_example_1_1_fills_half_of_the_last_cache(monkeypatch):
    from staxlab import tour
    from staxlab.measure.roofline import Ceiling, Roofline

    seen = []
    monkeypatch.setattr(tour, "place", lambda record, rows, columns, **more: seen.append((rows, columns)) or record)
    ceilings = (Ceiling("read", "bandwidth", 1e10), Ceiling("L3 read", "bandwidth", 1e11, "", "L3", 33 << 20))
    tour.place_in_cache(Roofline(ceilings))
    assert seen == [(1024, 1024)]
    tour.place_in_cache(Roofline(ceilings[:1]))
    assert len(seen) == 1


def test_the_console_script_is_the_same_program():
    script = Path(sys.executable).parent / "staxlab"
    if not script.exists():
        pytest.skip("staxlab is not installed into this environment")
    result = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.startswith("staxlab ")


def test_locate_says_that_nothing_is_wrong_or_what(capsys, monkeypatch, tmp_path):
    import torch

    from staxlab.loops.lowering import RULES

    sine, script, page = "torch.sin(torch.randn(6)) + 1", tmp_path / "small.py", tmp_path / "location.html"
    status, out, err = run(capsys, "locate", "-c", sine, "--script", str(script))
    assert status == 0 and "f: no error" in out and "f: capture ..." in err and not script.exists()
    assert f"{script} is not written: there is no error to show" in err
    aten = torch.ops.aten
    monkeypatch.setitem(RULES, aten.sin.default, RULES[aten.cos.default])
    status, out, _ = run(capsys, "locate", "-c", sine, "--script", str(script), "--html", str(page))
    assert status == cli.FAILED and "f goes wrong in Lowering: lowering of aten.sin.default" in out
    assert "torch.sin" in script.read_text() and "lowering of aten.sin" in page.read_text()


def test_reproduce_writes_what_it_prints_and_reads_it_back(capsys, tmp_path):
    out = tmp_path / "found"
    status, text, err = run(capsys, "reproduce", "add", "--quick", "--scale", "0.001", "--readings", "3",
                            "--out", str(out))  # fmt: skip
    assert status == 0 and "Tables 13.1 and 13.2" in text and "round B, add" in err
    assert sorted(path.name for path in out.iterdir()) == ["figure_13_1.svg", "tables.json", "tables.txt"]
    assert (out / "tables.txt").read_text() == text
    status, again, _ = run(capsys, "reproduce", "--from", str(out))
    assert (status, again) == (0, text)
    status, data, _ = run(capsys, "reproduce", "--from", str(out), "--json")
    assert status == 0 and json.loads(data)["tables"]["cases"][0]["case"] == "add"
    together = tmp_path / "all.json"
    assert run(capsys, "reproduce", "--from", str(out), "--out", str(together))[:2] == (0, text)
    assert run(capsys, "reproduce", "--from", str(together))[:2] == (0, text)
    assert (tmp_path / "all_figure_13_1.svg").exists() and json.loads(together.read_text())["machine"]
    together.write_text("{}")
    assert "holds no reproduction" in run(capsys, "reproduce", "--from", str(together))[2]
    (out / "tables.json").write_text("{}")
    status, _, err = run(capsys, "reproduce", "--from", str(out))
    assert status == 2 and "holds no reproduction" in err


def test_reproduce_measures_what_the_text_calls_by_a_name(monkeypatch):
    from staxlab import reproducing
    from staxlab.measure.reproduction import Reproduction
    from staxlab.measure.roofline import Roofline

    asked = []
    monkeypatch.setattr(reproducing, "reproduce", lambda cases, *rest: asked.append(cases) or Reproduction(()))
    monkeypatch.setattr(reproducing.roofline, "measure", lambda *rest, **more: asked.append("roof") or Roofline(()))
    monkeypatch.setattr(reproducing.amortization, "measure_amortization", lambda *rest, **more: asked.append("calls"))
    for what in ("table-13.1", "figure-1.1"):
        reproducing.run(what, reproducing.Settings())
    example = (reproducing.chapter_case("example_1_1"),)
    assert asked == ["table-13.1", example, "roof"]
    with pytest.raises(OptionError, match="nothing called 'table-13.9'") as caught:
        reproducing.run("table-13.9", reproducing.Settings())
    assert all(what in caught.value.remedy for what in (*reproducing.WHAT, "example_7_1"))


def test_an_interrupted_reproduction_stops_and_says_so(capsys, monkeypatch):
    from staxlab.measure import reproduce

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "prepare", interrupted)
    status, out, _ = run(capsys, "reproduce", "all", "--scale", "0.001")
    assert status == cli.INTERRUPTED and "interrupted: what was measured until then" in out
