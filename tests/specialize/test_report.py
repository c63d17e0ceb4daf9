"""The report of a dispatcher: its counts are the dispatcher's, its lit level the one that served, its reasons Corollary
2.1, and it changes and keeps nothing."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.options import Options
from staxlab.specialize.dispatch import CacheInfo, Dispatcher
from staxlab.specialize.guards import MISSING, components
from staxlab.specialize.report import COMPILED, EAGER, PARTS, compare, growth_plot, parts_of, report, value_text
from staxlab.specialize.signature import compute_key
from tests.specialize.regions import CapturedRegion, dispatcher


def stand_in(level=1, same=0, fingerprint=0, key=0, compiled=0, eager=0, growth=(), **options):
    """Something with a dispatcher's public attributes and the given counts."""
    info = CacheInfo(same, fingerprint, key, compiled, len(growth), eager)
    return SimpleNamespace(
        fn=lambda x: x, options=Options(**options), cache_info=lambda: info, last_level=level, versions=(),
        recompiles=(), growth=growth,
    )  # fmt: skip


def double_or_shift(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def served(record):
    return {station.level: station.served for station in record.stations}


def lit(record):
    return [station.level for station in record.stations if station.is_last]


# -- the call path -------------------------------------------------------------------------------------------------


counts = st.integers(0, 1000)


@given(counts, counts, counts, counts, counts, st.sampled_from([1, 2, 3, COMPILED, EAGER]))
def test_what_enters_a_station_leaves_it(same, fingerprint, key, compiled, eager, level):
    record = report(stand_in(level, same, fingerprint, key, compiled, eager))
    assert served(record) == {1: same, 2: fingerprint, 3: key, COMPILED: compiled, EAGER: eager}
    stations = record.stations
    assert stations[0].reached == record.calls == same + fingerprint + key + compiled + eager
    for station, following in zip(stations, stations[1:], strict=False):
        assert following.reached == station.reached - station.served
    assert stations[-1].reached == stations[-1].served
    assert lit(record) == ([level] if record.calls else [])


def test_the_station_whose_count_rises_is_the_one_that_is_lit():
    w = torch.ones(8)
    compiled = dispatcher(lambda x, k: x * w + k, max_versions=3)
    x, y = torch.randn(8), torch.randn(4, 8)
    assert lit(report(compiled)) == [] and report(compiled).last_level is None
    seen = set()
    for argument, k in [(x, 1), (x, 1), (x, 1), (x, 1), (y, 1), (torch.randn(8), 1), (x, 2), (y, 1), (x, 1)]:
        before = served(report(compiled))
        compiled(argument, k)
        w.add_(1) if argument is y else None
        after = report(compiled)
        risen = [level for level, count in served(after).items() if count != before[level]]
        assert risen == lit(after) == [compiled.last_level]
        assert served(after)[risen[0]] == before[risen[0]] + 1
        seen.update(risen)
    assert COMPILED in seen and len(seen) >= 3


def test_a_call_beyond_the_limits_is_lit_as_eager():
    compiled = dispatcher(lambda x, k: x * k, max_versions=1)
    x = torch.randn(4)
    compiled(x, 1)
    with pytest.warns(Warning, match="reached 1 versions"):
        compiled(x, 2)
    record = report(compiled)
    assert lit(record) == [EAGER] and served(record)[EAGER] == 1
    assert record.limit_reached == "1 versions" and "at the limit of 1 versions" in str(record)


def test_the_limit_of_compilations_counts_too():
    record = report(stand_in(COMPILED, compiled=3, growth=((1, 1),), max_compilations=3))
    assert record.limit_reached == "3 compilations"
    assert report(stand_in(COMPILED, compiled=2, growth=((1, 1),), max_compilations=3)).limit_reached == ""


# -- versions and reasons ------------------------------------------------------------------------------------------


def test_example_3_2_as_a_report():
    compiled = dispatcher(double_or_shift)
    for x in (torch.ones(4, 8), torch.ones(4, 8), -2 * torch.ones(4, 8), torch.ones(6, 8)):
        compiled(x)
    record = report(compiled)
    assert [(v.number, v.calls, v.compiled_at) for v in record.versions] == [(1, 2, 1), (2, 1, 3), (3, 1, 4)]
    assert [v.path_condition.rpartition(" == ")[2] for v in record.versions] == ["True", "False", "True"]
    assert [v.made for v in record.versions] == ["3 operations"] * 3
    assert record.growth == ((1, 1), (3, 2), (4, 3)) and [record.versions_at(k) for k in range(5)] == [0, 1, 1, 2, 3]
    first, second = record.recompiles
    assert (first.call, first.version, second.call, second.version) == (3, 2, 4, 3)
    assert first.title == "call 3 fitted no version: version 2 was compiled"
    assert len(first.paths) == 1 and first.paths[0].startswith("bool(%gt)")
    assert second.paths[0] == "x.shape[0]" and len(second.paths) == 2
    assert [number for number, _ in second.failures] == [1, 2]
    apart = {row.path: row.texts for row in record.rows if not row.is_equal}
    assert apart == {"x.shape[0]": ("4", "4", "6"), first.paths[0]: ("True", "False", "True")}


def test_reasons_are_counted_right_when_compiling_fails_in_between():
    attempts = []

    def compile_region(fn, args, kwargs, key):
        attempts.append(args)
        if len(attempts) == 2:
            raise RuntimeError("planted")
        return CapturedRegion(fn, args, kwargs)

    compiled = Dispatcher(lambda x, k: x * k, compile_region, Options())
    x = torch.randn(4)
    compiled(x, 1)
    with pytest.raises(RuntimeError, match="planted"):
        compiled(x, 2)
    compiled(x, 3)
    compiled(x, 4)
    found = [(r.version, r.is_fruitless, r.call) for r in report(compiled).recompiles]
    assert [(version, fruitless) for version, fruitless, _ in found] == [(None, True), (2, False), (3, False)]
    assert [call for _, _, call in found] == [None, *(call for call, _ in compiled.growth[1:])]
    assert report(compiled).recompiles[0].title.endswith("none came of it")


def nested(x, scale):
    return {"a": [x, scale], "b.c": x}


@pytest.mark.parametrize(
    "shapes", [((4, 8), (4, 8)), ((4,), (4, 8), (2, 3, 5)), ((2, 3, 5), (4,)), ((1,),)], ids=lambda s: str(len(s))
)
def test_every_component_of_every_version_is_in_one_cell(shapes):
    keys = [compute_key((nested(torch.ones(s), k), s), {"flag": k > 0}, gates=[k]) for k, s in enumerate(shapes)]
    rows = compare(keys)
    assert len({row.path for row in rows}) == len(rows)
    for position, key in enumerate(keys):
        cells = {row.path: row.values[position] for row in rows if row.values[position] is not MISSING}
        assert cells == components(key)
        # Within a part, a version's components keep their order, whatever other versions have in between.
        for part in PARTS:
            shown = [row.path for row in rows if row.part == part and row.values[position] is not MISSING]
            known = parts_of(key)
            assert shown == [path for path in components(key) if known[path] == part]


def test_the_parts_of_a_key():
    key = compute_key((torch.ones(2),), {}, gates=[True], gate_names=["bool(%gt)"])
    key = dataclasses.replace(key, gamma_s=(((2,), (1,)), ((3,), (1,))))
    parts = parts_of(key)
    assert {part for path, part in parts.items() if "shape read" in path and part != "counts"} == {"gamma_s"}
    assert parts["bool(%gt)"] == "gamma_g"
    assert parts["grad_mode"] == parts["default_dtype"] == "rho"
    assert [path for path, part in parts.items() if part == "counts"] == [p for p in parts if p.startswith("counts of")]
    assert set(parts) == set(components(key)) and set(parts.values()) == set(PARTS)


def test_one_and_true_are_different_values():
    rows = compare([compute_key((1,), {}), compute_key((True,), {}), compute_key((1,), {})])
    apart = {row.path: row.differs for row in rows if not row.is_equal}
    assert apart == {"type(args[0])": (False, True, False), "args[0]": (False, True, False)}


def test_values_are_written_as_their_reader_would():
    key = compute_key(({"a": 1, 2: "b"}, torch.ones(2), [True]), {}, gates=[[1, 2.5], False])
    texts = {row.path: row.texts[0] for row in compare([key])}
    assert texts["list(args[0])"] == "('a', 2)" and texts["args[1].dtype"] == "float32"
    assert texts["type(args[2])"] == "list" and texts["gate[0]"] == "[1, 2.5]" and texts["gate[1]"] == "False"
    assert value_text(MISSING) == "absent"


# -- a snapshot ----------------------------------------------------------------------------------------------------


def test_a_report_does_not_change_and_keeps_nothing_alive():
    w = [torch.ones(8)]
    compiled = dispatcher(lambda x: x * w[0])
    compiled(torch.ones(8))
    record = report(compiled)
    text = str(record)
    compiled(torch.ones(2, 8))
    assert str(record) == text != str(report(compiled))
    dying = weakref.ref(w[0]), weakref.ref(compiled.versions[0].region), weakref.ref(compiled)
    w.clear()
    del compiled
    gc.collect()
    assert [reference() for reference in dying] == [None, None, None]
    assert str(record) == text


def test_the_text_names_counts_levels_and_reasons():
    compiled = dispatcher(double_or_shift)
    for x in (torch.ones(4, 8), -torch.ones(4, 8), -torch.ones(4, 8)):
        compiled(x)
    text = str(report(compiled))
    info = compiled.cache_info()
    lines = text.splitlines()
    assert lines[0] == "dispatch of 'double_or_shift': 3 calls, 2 versions (at most 8), 2 compilations (at most 256)"
    for name, count in (("level 1", info.same_objects), ("level 2", info.fingerprint), ("level 3", info.key)):
        (line,) = [line for line in lines if line.lstrip(" >").startswith(name)]
        assert line.removesuffix("   <- last call").split()[-1] == str(count)
    (last,) = [line for line in lines if "<- last call" in line]
    assert last.lstrip().startswith(f"> level {compiled.last_level}")
    (row,) = [line for line in lines if line.startswith("bool(%gt)")]
    assert row.split()[-2:] == ["True", "False*"]
    assert "call 2 fitted no version: version 2 was compiled" in text and "expects True, got False" in text
    assert max(map(len, lines)) <= 130


def test_a_report_before_the_first_call():
    record = report(dispatcher(double_or_shift))
    assert record.calls == 0 and record.rows == () and "0 calls, 0 versions" in str(record)
    assert "<- last call" not in str(record) and growth_plot(record)


@pytest.mark.parametrize("calls,growth", [(1, [1]), (5, [1, 3]), (1000, [1, 2, 900]), (9, range(1, 9))])
def test_the_plot_in_characters_steps_where_versions_were_compiled(calls, growth):
    growth = tuple((call, k + 1) for k, call in enumerate(growth))
    record = report(stand_in(COMPILED, key=calls - len(growth), compiled=len(growth), growth=growth))
    lines = growth_plot(record).splitlines()
    rows = {line.split("|")[0].strip(): line.split("|")[1] for line in lines if "|" in line}
    marked = {count: line.index("#") for count, line in rows.items() if "#" in line}
    reached = {str(record.versions_at(call)) for call, _ in growth}
    assert set(marked) == reached if calls < 56 else set(marked) <= reached
    assert sorted(marked.values()) == [marked[count] for count in sorted(marked, key=int)]
    assert "limit 8" in rows["8"] and lines[-1].split()[0] == "1"


def test_a_limit_far_above_is_named_and_not_drawn():
    plot = growth_plot(report(stand_in(COMPILED, compiled=1, growth=((1, 1),), max_versions=100)))
    assert "limit of 100 versions is far above" in plot and plot.count("|") == 1
