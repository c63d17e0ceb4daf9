"""The check of every kernel form on a device, without one: the command, what is made of its output, the forms."""

from __future__ import annotations

import sys

import pytest
import torch

from benchmarks import gpu_sanitizer
from benchmarks.kernel_forms import FORMS, placed

OUTPUT = """form pointwise: right
========= Invalid __global__ read of size 4 bytes
=========     at triton_per_fused_0+0x120
form looped: wrong
form split: failed: BuildError: no
========= ERROR SUMMARY: 1 error
"""


def test_what_a_tool_says_is_read():
    found = gpu_sanitizer.parse(OUTPUT)
    assert found["forms"] == {"pointwise": "right", "looped": "wrong", "split": "failed: BuildError: no"}
    assert found["summaries"] == ["1 error"] and len(found["findings"]) == 2
    assert gpu_sanitizer.parse("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")["summaries"]


@pytest.mark.parametrize("tool", gpu_sanitizer.TOOLS)
def test_only_our_kernels_are_checked_and_findings_are_an_exit_status(tool):
    line = gpu_sanitizer.command(tool, "compute-sanitizer", "soft")
    assert line[:3] == ["compute-sanitizer", "--tool", tool] and "kns=triton_" in line
    assert line[line.index("--error-exitcode") + 1] == str(gpu_sanitizer.FOUND)
    assert line[line.index(sys.executable) :][1:] == ["-m", "benchmarks.gpu_sanitizer", "--execute", "--forms", "soft"]


def fake_sanitizer(path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_run_is_clean_only_if_the_tool_says_so_and_every_form_was_right(tmp_path):
    forms = "; ".join(f"echo 'form {form.name}: right'" for form in gpu_sanitizer.chosen_forms("scan"))
    summary = "echo '========= ERROR SUMMARY: 0 errors'"
    cases = {
        f"{forms}; {summary}": True, f"{forms}; {summary}; exit 9": False, forms: False, summary: False,
        f"{forms}; sleep 30; {summary}": False,
    }  # fmt: skip
    for number, (body, clean) in enumerate(cases.items()):
        sanitizer = fake_sanitizer(tmp_path / f"sanitizer{number}", body)
        found = gpu_sanitizer.run("memcheck", sanitizer, "scan", 2)
        assert found["clean"] == clean, body


def test_forms_run_in_the_interpreter(capsys):
    assert gpu_sanitizer.main(["--smoke", "--forms", "pointwise, several"]) == 0
    assert capsys.readouterr().out == "form pointwise, several results: right\n"


def test_a_wrong_value_is_said(capsys):
    from dataclasses import replace

    calls = []

    def changing(x, y):
        calls.append(x)
        return x + y + (len(calls) == 1)

    form = next(form for form in FORMS if form.name == "half precision")
    assert gpu_sanitizer.execute([replace(form, name="changing", function=changing)], "cpu") == 1
    assert "form changing: wrong" in capsys.readouterr().out
    raising = replace(form, name="raising", function=lambda x, y: x @ y @ x)
    assert gpu_sanitizer.execute([raising], "cpu") == 1
    assert "form raising: failed: " in capsys.readouterr().out


def test_without_a_device_it_says_so(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    assert gpu_sanitizer.main([]) == 2
    assert "--smoke" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--tools", "memchek"], ["--forms", "nothing like it"]])
def test_what_does_not_exist_is_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        gpu_sanitizer.main(arguments)
    assert "memcheck" in capsys.readouterr().err or "forms" in arguments[0]


def test_tensors_keep_their_layout_on_another_device():
    for form in FORMS:
        for tensor in form.inputs(form.values_at or form.sizes):
            if tensor.untyped_storage().nbytes() < 1 << 24:
                copy = placed(tensor, "cpu")
                assert copy.stride() == tensor.stride() and torch.equal(copy, tensor)
    gaps = torch.arange(12.0).view(3, 4)[:, ::2]
    assert placed(gaps, "cpu").stride() == (4, 2) and torch.equal(placed(gaps, "cpu"), gaps)
    assert placed(torch.empty(0, 3), "cpu").shape == (0, 3)
