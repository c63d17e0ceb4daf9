"""The exercise notebooks: up to date, valid for Jupyter and nbgrader, and graded rightly when they are executed."""

from __future__ import annotations

import json
import re

import pytest

from staxlab import learn
from staxlab.learn import notebook as builder

nbformat = pytest.importorskip("nbformat")
SECTIONS = sorted({exercise.section for exercise in learn.catalogue()})
FLAGS = {"statement": "FFT", "values": "FFT", "answer": "FTF", "check": "TFT", "prose": "TTF"}
STUDENT = "ada"


def flags(cell):
    meta = cell["metadata"]["nbgrader"]
    return "".join("T" if meta[key] else "F" for key in ("grade", "solution", "locked"))


@pytest.mark.parametrize("section", SECTIONS)
def test_the_committed_notebook_is_the_generated_one(section, repository):
    path = repository / "exercises" / builder.notebook_name(section)
    generated = builder.text_of(builder.build(section))
    assert path.read_text(encoding="utf-8") == generated, "run python -m staxlab.learn.notebook"


def test_no_other_notebook_is_committed(repository):
    found = {path.name for path in (repository / "exercises").glob("*.ipynb")}
    assert found == {builder.notebook_name(section) for section in SECTIONS}


@pytest.mark.parametrize("section", SECTIONS)
def test_it_is_a_valid_notebook_without_outputs(section):
    notebook = nbformat.reads(builder.text_of(builder.build(section)), as_version=4)
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("answers", ["empty", "reference"])
def test_nbgraders_metadata_is_well_formed(section, answers):
    given = builder.reference_answers("anonymous") if answers == "reference" else (lambda exercise: None)
    cells = builder.build(section, answers=given)["cells"]
    graded = [cell for cell in cells if "nbgrader" in cell["metadata"]]
    ids = [cell["metadata"]["nbgrader"]["grade_id"] for cell in graded]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[a-zA-Z0-9_-]+", name) for name in ids)
    allowed = {"cell_type", "grade", "grade_id", "locked", "points", "schema_version", "solution", "task"}
    for cell in graded:
        meta = cell["metadata"]["nbgrader"]
        assert set(meta) <= allowed and meta["schema_version"] == 3 and meta["cell_type"] == cell["cell_type"]
        assert ("points" in meta) == meta["grade"]
        role = cell["metadata"].get("staxlab", {}).get("role")
        if role:
            assert flags(cell) == FLAGS[role]
            assert (cell["cell_type"] == "markdown") == (role == "statement")


@pytest.mark.parametrize("section", SECTIONS)
def test_points_and_fields_are_those_of_the_exercises(section):
    cells = builder.build(section)["cells"]
    for exercise in learn.catalogue():
        if exercise.section != section:
            continue
        own = [cell for cell in cells if cell["metadata"].get("staxlab", {}).get("exercise") == exercise.id]
        checks = [cell for cell in own if cell["metadata"]["staxlab"]["role"] == "check"]
        assert (
            sum(cell["metadata"]["nbgrader"]["points"] for cell in checks)
            == learn.check(exercise.id, record=False).maximum
        )
        asked = [name for cell in own for name in cell["metadata"]["staxlab"].get("fields", ())]
        assert sorted(asked) == sorted(field.name for field in exercise.fields)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_has_a_variable_that_is_set_before_it_is_checked(section):
    """Prose as well: what is not a variable is not recorded."""
    seen: set[str] = set()
    for cell in builder.build(section)["cells"]:
        own = cell["metadata"].get("staxlab", {})
        if own.get("role") in ("answer", "prose"):
            assert cell["cell_type"] == "code"
            namespace: dict = {}
            exec("".join(cell["source"]), namespace)
            assert set(own["fields"]) <= set(namespace)
            seen.update(own["fields"])
        if own.get("role") == "check":
            part = learn.load(own["exercise"]).part(own["part"])
            assert {field.name for field in part.fields} <= seen


def test_hint_cells_do_nothing_when_all_cells_are_run():
    for cell in builder.build(SECTIONS[0])["cells"]:
        if cell["metadata"].get("staxlab", {}).get("role") == "hint":
            assert "nbgrader" not in cell["metadata"]
            assert all(line.startswith("#") for line in "".join(cell["source"]).splitlines())


def test_solutions_stand_between_nbgraders_marks_and_only_there():
    text = builder.text_of(builder.build(1, answers=builder.reference_answers("anonymous")))
    assert text.count("### BEGIN SOLUTION") == text.count("### END SOLUTION") > 3
    assert "BEGIN SOLUTION" not in builder.text_of(builder.build(1))
    stripped = re.sub(r"### BEGIN SOLUTION.*?### END SOLUTION", "", text, flags=re.DOTALL)
    assert "8*C*n + n" in text and "8*C*n + n" not in stripped


def test_the_command_writes_checks_and_refuses(tmp_path, capsys):
    assert builder.main(["--out", str(tmp_path), "--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert builder.main(["--out", str(tmp_path)]) == 0
    assert builder.main(["--out", str(tmp_path), "--check"]) == 0
    path = tmp_path / builder.notebook_name(SECTIONS[0])
    path.write_text(path.read_text() + " ")
    assert builder.main(["--out", str(tmp_path), "--check"]) == 1


def test_answers_become_code():
    assert builder.answer_code("x", "n\n") == "x = 'n\\n'"

    def other(n):
        return n

    assert builder.answer_code("x", other) == "def other(n):\n    return n\n\n\nx = other"
    assert builder.answer_code("other", other) == "def other(n):\n    return n"


def execute(notebook, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    node = nbformat.reads(builder.text_of(notebook), as_version=4)
    nbclient.NotebookClient(node, timeout=600, kernel_name="python3").execute()
    return node


def grade(cell):
    """As nbgrader does: an error or text on stderr is zero, the value of the last line is the number of points."""
    for output in cell.outputs:
        if output.output_type == "error" or (output.output_type == "stream" and output.name == "stderr"):
            return 0.0, output
        if output.output_type == "execute_result":
            return float(output.data["text/plain"]), output
    raise AssertionError("nbgrader would give full points to a graded cell without a result")


def graded_cells(node):
    return [cell for cell in node.cells if cell.metadata.get("staxlab", {}).get("role") == "check"]


@pytest.fixture
def kernel_environment(monkeypatch, tmp_path, repository):
    monkeypatch.setenv("STAXLAB_LEARN_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path


@pytest.mark.parametrize("section", SECTIONS)
def test_executed_with_the_reference_it_earns_every_point(section, kernel_environment):
    notebook = builder.build(section, student=STUDENT, answers=builder.reference_answers(STUDENT))
    node = execute(notebook, kernel_environment)
    for cell in graded_cells(node):
        points, output = grade(cell)
        assert points == cell.metadata.nbgrader.points, output
        shown = [output.data for output in cell.outputs if output.output_type == "display_data"]
        assert len(shown) == 1 and "text/html" in shown[0] and "✓" in shown[0]["text/plain"]
    (record,) = kernel_environment.glob(f"{STUDENT}-????????.json")
    recorded = json.loads(record.read_text())["exercises"]
    assert set(recorded) == {exercise.id for exercise in learn.catalogue() if exercise.section == section}


@pytest.mark.parametrize("section", SECTIONS)
def test_executed_as_students_get_it_it_earns_nothing_and_does_not_stop(section, kernel_environment):
    notebook = builder.build(section)
    # A student who deleted an answer cell: still no crash, since the check takes what is there.
    cells = notebook["cells"]
    victim = next(cell for cell in cells if cell["metadata"].get("staxlab", {}).get("role") == "answer")
    cells.remove(victim)
    node = execute(notebook, kernel_environment)
    for cell in graded_cells(node):
        points, output = grade(cell)
        assert points == 0, output
        assert not any(output.output_type in ("error", "stream") for output in cell.outputs)
