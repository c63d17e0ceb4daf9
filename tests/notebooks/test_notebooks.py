"""Every notebook as a newcomer meets it: plain, short-celled, linked, and running from the first cell to the last.

The default run executes the cells on small tensors in this process. The slow one does what a reader does: ``nbconvert
--execute`` on the notebook as it is. Nothing but ``LIVE`` knows a particular notebook: one that is added is tested
by being there.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.notebooks.running import NOTEBOOKS, cells, run_cells

BY_STEM = {path.stem: path for path in NOTEBOOKS}
SECTIONS = [stem for stem in BY_STEM if not stem.startswith("00_")]

# How many live records a notebook shows at least, and of which types.
LIVE = {
    "00_tour": (14, {"Compilation", "Key", "Capture", "LoopProgram", "Schedule", "KernelSet", "Roofline"}),
    "01_introduction": (
        15,
        {"Traffic", "LowerBound", "TrafficModel", "Roofline", "Comparison", "KernelSet", "BreakEven"},
    ),
    "02_specialization": (9, {"Capture", "Key", "LoopProgram", "DispatchReport", "Comparison"}),
    "03_capture": (7, {"Capture", "GraphModule", "DispatchReport"}),
    "04_transformation": (
        11,
        {
            "TransformLog",
            "Expansion",
            "DecompositionTable",
            "Functionalization",
            "TransformationMap",
            "IdentityTable",
            "TreatmentTable",
            "PassCosts",
        },
    ),
    "05_differentiation": (
        13,
        {
            "OperatorGraph",
            "ReverseSweep",
            "JointGraph",
            "Flow",
            "Partition",
            "Compilation",
            "MemoryTimeline",
            "Reversal",
            "TradeOff",
            "Frontier",
        },
    ),
    "06_loops": (
        22,
        {
            "LoopProgram",
            "Composition",
            "ViewMap",
            "SplitMap",
            "RealizationTable",
            "WhatIf",
            "Comparison",
            "Interpretations",
            "Validation",
        },
    ),
    "07_scheduling": (
        11,
        {
            "Schedule",
            "FusionHistory",
            "FusionGap",
            "Comparison",
            "MemoryPlan",
            "Dependences",
            "Transformation",
            "AffineSchedule",
            "NoSchedule",
        },
    ),
    "08_cpu": (
        13,
        {
            "KernelSet",
            "LaneReduction",
            "CacheLines",
            "Depth",
            "Sharing",
            "Feedback",
            "Comparison",
            "Wrapper",
            "InnerLoop",
            "Roofline",
        },
    ),
    "09_gpu": (
        36,
        {
            "TileTraffic",
            "Projections",
            "PebbleRun",
            "Numbering",
            "L2Traffic",
            "Pipeline",
            "StageBudget",
            "ProductModels",
            "RidgeTable",
            "Roofline",
            "EpilogueSaving",
            "Feedback",
            "LittlesLaw",
            "Occupancy",
            "KernelSet",
            "Kernel",
            "LoweringSteps",
            "TilingComparison",
            "CandidateResources",
            "Search",
            "SideBySide",
            "Wrapper",
            "LaunchTimeline",
            "GraphReport",
            "SavedRun",
        },
    ),
    "09b_attention": (
        15,
        {
            "AttentionTraffic",
            "MonoidLaws",
            "InstanceRun",
            "BlockMask",
            "Modification",
            "AdjointBody",
            "KernelSet",
            "LseDerivation",
            "Feedback",
            "TransformLog",
        },
    ),
    "10_dynamic_shapes": (
        9,
        {"Capture", "ShapeGuard", "DispatchReport", "RangeAnswers", "ExportedProgram", "VersionHistory"},
    ),
    "11_caching_and_fallback": (
        13,
        {
            "Feedback",
            "BirthdayBound",
            "Contents",
            "BuildReport",
            "ListSchedule",
            "CompilationFlow",
            "ModeTable",
            "BackendTable",
            "Location",
            "DispatchReport",
            "Comparison",
        },
    ),
    "13_measurement": (
        12,
        {
            "Timing",
            "Rounds",
            "SizeSweep",
            "Roofline",
            "Reproduction",
            "SpeedupDecomposition",
            "SavedRun",
            "RoundingStudy",
            "Amortization",
            "VersionHistory",
        },
    ),
    "12_discussion": (
        18,
        {
            "Observations",
            "Behaviour",
            "DispatchReport",
            "KeyTable",
            "FailureTable",
            "HloStages",
            "LoopsBeside",
            "LoopProgram",
            "SavedRun",
            "DialectCounts",
            "Layers",
            "Feedback",
        },
    ),
}

#: Notebooks whose exercises stand in that of another part of their section.
EXERCISES = {"09b_attention": "09_gpu", "11_caching_and_fallback": "11_runtime"}


def quick_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A roofline that was not measured, example points of small tensors, first calls without processes, and systems as
    they were observed before."""
    from staxlab.measure import amortization, comparison, roofline

    kept = json.loads(comparison.SAVED.read_text(encoding="utf-8"))
    monkeypatch.setattr(comparison, "_run_command", lambda arguments: kept)

    limits = (
        roofline.Ceiling("read", "bandwidth", 50e9),
        roofline.Ceiling("matmul", "throughput", 400e9),
    )
    seconds = {state: [1.0] for state in amortization.STATES}
    monkeypatch.setattr(amortization, "first_calls", lambda **_: (seconds, True))
    points = roofline.example_points
    monkeypatch.setattr(roofline, "measure", lambda **_: roofline.Roofline(ceilings=limits))
    monkeypatch.setattr(roofline, "example_points", lambda fn, **_: points(fn, rows=64, columns=128, readings=3))


def test_there_are_notebooks():
    assert set(LIVE) <= set(BY_STEM)


@pytest.mark.parametrize("stem", BY_STEM)
def test_it_is_a_plain_document(stem):
    notebook = json.loads(BY_STEM[stem].read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    identifiers = [cell["id"] for cell in notebook["cells"]]
    assert len(identifiers) == len(set(identifiers))
    for cell in notebook["cells"]:
        assert len("".join(cell["source"]).splitlines()) <= 30, f"{cell['id']}: cells are short"
        assert not cell["metadata"] and not cell.get("outputs") and cell.get("execution_count") is None, cell["id"]


@pytest.mark.parametrize("stem", BY_STEM)
def test_its_links_lead_somewhere(stem):
    targets = re.findall(r"\]\(([^)#]+)", "\n".join(text for _, text in cells(BY_STEM[stem], "markdown")))
    assert len(targets) > 5
    for target in targets:
        assert not target.startswith("http"), "a notebook needs no network"
        assert (BY_STEM[stem].parent / target).exists(), target


@pytest.mark.parametrize("stem", SECTIONS)
def test_it_says_what_it_takes_and_where_to_go_on(stem):
    texts = [text for _, text in cells(BY_STEM[stem], "markdown")]
    opening, ending = texts[0], texts[-1]
    assert re.search(r"\*Section \d+\. About \d+ minutes", opening), "the time it needs"
    assert "**You need**" in opening and "**Afterwards you can**" in opening, "prerequisites and outcomes"
    assert re.findall(r"\(\.\./staxlab/[\w/]+\.py\)", ending), "the modules that implement the section"
    assert f"(../exercises/{EXERCISES.get(stem, stem)}.ipynb)" in ending, "the exercises of the section"
    assert sum("**Predict" in text for text in texts) >= 4, "the reader is asked before the machine is"


@pytest.mark.parametrize("stem", BY_STEM)
def test_every_cell_runs_and_every_record_draws_itself(stem, monkeypatch):
    """All cells in order, on small tensors; what a cell ends with must display as a notebook would display it."""
    quick_measurements(monkeypatch)
    shown = run_cells(BY_STEM[stem])
    count, types = LIVE.get(stem, (3, set()))
    assert len(shown.records) >= count, shown.records
    assert types <= set(shown.records), types - set(shown.records)


def test_a_cell_that_fails_is_named(tmp_path):
    def notebook(*sources):
        path = tmp_path / "broken.ipynb"
        found = [{"cell_type": "code", "id": f"cell-{k}", "source": source} for k, source in enumerate(sources)]
        path.write_text(json.dumps({"cells": found}))
        return path

    with pytest.raises(ZeroDivisionError) as caught:
        run_cells(notebook("a = 1", "a / 0"))
    assert "cell 'cell-1' of broken.ipynb" in caught.value.__notes__[0]
    prints = "import staxlab, torch\ndef f(x):\n    print('once')\n    return x\n"
    with pytest.raises(Warning, match="side effects"):
        run_cells(notebook(prints + "staxlab.compile(f, backend='eager')(torch.ones(2))"))
    undrawn = "class Mute:\n    def _repr_mimebundle_(self):\n        return {'text/plain': ' '}\nMute()"
    with pytest.raises(AssertionError, match="Mute shows nothing"):
        run_cells(notebook(undrawn))


@pytest.mark.slow
@pytest.mark.parametrize("stem", BY_STEM)
def test_the_converted_notebook_is_complete(stem, converted):
    text = converted(stem).read_text(encoding="utf-8")
    assert text.count('class="staxlab sx-root') >= LIVE.get(stem, (3, set()))[0]
    assert "Traceback" not in text and "drawing failed" not in text
    assert not re.findall(r'data-mime-type="[^"]*(?:stderr|error)"', text), "something in red stands between the cells"
    assert len(text) < 8_000_000
