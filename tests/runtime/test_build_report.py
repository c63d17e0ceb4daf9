"""What a build says of itself: its tasks, its bounds, and a line about it where it takes long."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab.errors import OptionError
from staxlab.measure.list_scheduling import list_schedule
from staxlab.runtime import build, build_progress, build_report
from staxlab.runtime.build_report import BuildReport, BuildTask, bounds, of_compilation


@pytest.fixture
def fresh(cache_dir, monkeypatch):
    monkeypatch.setenv(build_report.VARIABLE, "2")
    build.clear()
    yield
    build.clear()


def region(x, w):
    for k in range(3):
        x = torch.tanh(x @ w) * k + 1
    return x


def compile_region():
    x, w = (torch.randn(32, 32) for _ in range(2))
    compiled = staxlab.compile(region, strict_native=True)
    torch.testing.assert_close(compiled(x, w), region(x, w))
    return compiled.versions[0].compilation


def test_every_kernel_is_a_task_and_the_second_build_is_all_hits(fresh):
    first = compile_region()
    report, kernels = first.artifact.build, [k for k in first.kernels if k.language == "cpp"]
    assert {task.kernel for task in report.tasks} == {kernel.name for kernel in kernels} and len(kernels) == 4
    origins = {kernel.name: kernel.origins for kernel in kernels}
    for task in report.tasks:
        assert 0 <= task.queued <= task.started <= task.finished <= report.seconds
        assert task.origins == origins[task.kernel] and task.origins and task.language == "cpp"
    assert report.workers == 2 and {task.worker for task in report.compiled} <= {0, 1}
    assert first.artifact.cache_hits == {task.kernel: task.hit for task in report.tasks}
    for lane, tasks in report.lanes:
        for one, other in zip(tasks, tasks[1:], strict=False):
            assert one.finished <= other.started, f"worker {lane} did two things at once"
    build.clear()
    again = compile_region().artifact.build
    assert all(task.hit and task.worker == build_report.CALLER for task in again.tasks) and len(again.tasks) == 4
    assert again.compiled == () and again.bound == (0.0, 0.0) and again.speedup == 1
    assert "found compiled" in again.summary()


def test_a_build_of_one_worker_takes_them_one_by_one(fresh, monkeypatch):
    monkeypatch.setenv(build_report.VARIABLE, "1")
    report = compile_region().artifact.build
    assert report.workers == 1 and {task.worker for task in report.compiled} == {0}
    assert report.bound[0] == pytest.approx(report.work)


def test_the_serial_part_stands_in_front(fresh):
    compilation = compile_region()
    report = of_compilation(compilation)
    assert dict(report.before) == {n: s for n, s in compilation.timings.items() if n != "artifact"}
    assert report.serial == pytest.approx(sum(s for _, s in report.before)) and report.tasks
    elsewhere = staxlab.explain(region, torch.randn(32, 32), torch.randn(32, 32), target="sm_90")
    with pytest.raises(OptionError, match="was not built: it is compiled for sm_90"):
        of_compilation(elsewhere)


def test_the_explorer_has_the_build_beside_the_other_stages(fresh):
    from staxlab.view.explorer import about

    compilation = compile_region()
    panes = dict(about(compilation))["Build"]()
    assert "kernels compiled by 2 workers" in panes[0].summary and "serial" in panes[0].plain
    elsewhere = staxlab.explain(region, torch.randn(32, 32), torch.randn(32, 32), target="sm_90")
    assert "Build" not in dict(about(elsewhere))


def report_of(durations, workers):
    """The report of a build that went exactly as a greedy list schedule does."""
    schedule = list_schedule(durations, workers)
    tasks = tuple(
        BuildTask(f"k{a.task}", "cpp", a.worker, 0.0, float(a.start), float(a.finish), False)
        for a in schedule.assignments
    )
    return BuildReport(tasks, workers, float(schedule.makespan))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 5))
def test_the_makespan_of_a_greedy_build_keeps_its_bounds(durations, workers):
    report = report_of(durations, workers)
    low, high = report.bound
    assert low - 1e-9 <= report.makespan <= high + 1e-9
    assert report.work == pytest.approx(sum(durations)) and report.speedup <= workers + 1e-9


def test_bounds_are_exact():
    assert bounds([1, 2, 4], 2) == (4, Fraction(15, 2)) and bounds([], 3) == (0, 0)
    assert bounds([Fraction(1, 3)] * 3, 2) == (Fraction(1, 2), Fraction(5, 6))
    with pytest.raises(OptionError, match="needs a worker, not 0"):
        bounds([1], 0)


def test_hits_take_no_part_in_the_bounds():
    report = report_of([4, 2], 2)
    hit = BuildTask("h", "cpp", build_report.CALLER, 0.0, 0.0, 100.0, True)
    assert replace(report, tasks=(hit, *report.tasks)).bound == report.bound
    assert replace(report, tasks=(hit, *report.tasks)).makespan == report.makespan


def test_what_is_built_is_said_where_it_was_asked_for(fresh, monkeypatch, caplog):
    with caplog.at_level("DEBUG", "staxlab.build"):
        report = compile_region().artifact.build
    said = [record.getMessage() for record in caplog.records if record.name == "staxlab.build"]
    assert len(said) == 4 == len(report.tasks)
    for task in report.tasks:
        assert any(task.kernel in line and "compiled in" in line for line in said)


# -- progress ----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, patience=0.0, steps=(0, 1, 2, 3, 4, 5, 6, 7, 8)):
    monkeypatch.setattr(build_progress, "PATIENCE", patience)
    monkeypatch.setattr(sys, "stderr", stream)
    progress = build_progress.Progress(8)
    for done in steps:
        progress.show(done)
    progress.end()
    return stream.getvalue() if hasattr(stream, "getvalue") else None


def test_a_short_build_says_nothing(monkeypatch):
    assert shown(monkeypatch, io.StringIO(), patience=1000) == "" == shown(monkeypatch, Terminal(), patience=1000)


def test_nothing_is_said_of_what_is_over(monkeypatch):
    assert shown(monkeypatch, io.StringIO(), steps=(8,)) == "" == shown(monkeypatch, Terminal(), steps=(8,))


def test_a_log_gets_a_line_for_each_quarter(monkeypatch):
    lines = shown(monkeypatch, io.StringIO()).splitlines()
    assert [line.split(" kernels")[0] for line in lines] == [f"staxlab: {n} of 8" for n in (0, 2, 4, 6, 8)]


def test_a_terminal_has_one_line_that_is_gone_at_the_end(monkeypatch):
    text = shown(monkeypatch, Terminal())
    assert "\n" not in text and text.count("\r\x1b[K") == 10 and text.endswith("\r\x1b[K")
    assert "8 of 8 kernels compiled" in text


def test_a_notebook_has_a_display_that_is_updated(monkeypatch):
    updates = []

    class Handle:
        def update(self, content, raw):
            updates.append(content["text/plain"])

    def display(content, raw, display_id):
        assert raw and display_id
        updates.append(content["text/plain"])
        return Handle()

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    assert shown(monkeypatch, io.StringIO()) == "", "standard error stays empty"
    assert updates[0].startswith("staxlab: 0 of 8") and updates[-1] == "" and len(updates) == 10
    shell.kernel = None  # IPython in a terminal
    updates.clear()
    assert "8 of 8" in shown(monkeypatch, Terminal()) and not updates


@pytest.mark.parametrize("stream", [None, "closed"])
def test_nowhere_to_say_it_is_no_error(monkeypatch, stream):
    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr(build_progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", stream)
    progress = build_progress.Progress(2)
    progress.show(1)
    progress.end()
