"""Counted, not timed: kernels per program, bytes allocated at once, and the corpus both are counted on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import corpus, kernel_counts, peak_memory

ROOT = Path(__file__).parents[2]


def test_programs_are_found_by_name_and_by_group():
    assert [p.name for p in corpus.select("adam,block")] == ["adam", "block"]
    assert {p.group for p in corpus.select("all")} == {"cases", "fragments", "training"}
    assert all(p.training for p in corpus.select("training"))
    with pytest.raises(KeyError, match="no program named 'nothing'"):
        corpus.select("nothing")


@pytest.mark.parametrize("program", corpus.FRAGMENTS, ids=lambda p: p.name)
def test_fragments_run_and_are_the_same_every_time(program):
    results = []
    for _ in range(2):
        function, inputs = program.instance()
        result = corpus.call(program, function, inputs)
        results.append([*inputs, *(result if isinstance(result, tuple) else [result])])
    for a, b in zip(*results, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


# --- Kernels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", kernel_counts.MOST)
def test_the_examples_need_no_more_kernels_than_they_may(name):
    record = kernel_counts.run(corpus.select(name), ["staxlab"], lambda text: None)[0]
    assert record["excess"] is None, kernel_counts.line(record)
    assert record["peers"]["staxlab"]["kernels"] == 1


@pytest.mark.slow
def test_a_transformer_block_has_no_more_kernels_than_torch_compile_makes():
    record = kernel_counts.run(corpus.select("block"), ["staxlab", "torch_compile"], lambda text: None)[0]
    assert record["most"] is not None, kernel_counts.line(record)
    assert record["excess"] is None, kernel_counts.line(record)


def test_example_7_2_reads_its_input_once():
    import staxlab

    function, inputs = corpus.select("example_7_2")[0].instance()
    compilation = staxlab.explain(function, *inputs)
    assert len(compilation.kernels) == 1
    assert compilation.traffic.compiled.bytes_read == inputs[0].numel() * 4


def test_an_excess_is_named_and_fails_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(kernel_counts.MOST, "relu", 0)
    out = tmp_path / "counts.json"
    assert kernel_counts.main(["--programs", "relu", "--peers", "staxlab", "--out", str(out)]) == 1
    assert "1 KERNELS, AT MOST 0 WANTED" in capsys.readouterr().out
    assert json.loads(out.read_text())["in_excess"] == ["relu"]
    failed = {"program": "block", "peers": {"torch_compile": {"kernels": 3}, "staxlab": {"problem": "x"}}, "most": 3}
    assert kernel_counts.excess(failed) == "failed, at most 3 wanted"
    unknown = {"program": "block", "peers": {"torch_compile": {"problem": "x"}, "staxlab": {"kernels": 9}}}
    assert kernel_counts.most(unknown) is None


def test_calls_are_read_off_the_inductors_code():
    code = """
cpp_fused_add_0 = async_compile.cpp_pybinding(["const float*"], \'\'\'
extern "C"  void  kernel(const float* in)
{ #pragma omp parallel num_threads(2)
    { #pragma omp for
      #pragma omp for
    } }
\'\'\')
cpp_fused_mul_1 = async_compile.cpp_pybinding(["const float*"], \'\'\'
extern "C"  void  kernel(const float* in)
{ }
\'\'\')
    def call(self, args):
        cpp_fused_add_0(arg0, buf0)
        extern_kernels.mm(buf0, arg1, out=buf1)
        buf2 = torch.ops.aten.sort.default(buf1)
        cpp_fused_mul_1(buf2)
"""
    found = kernel_counts.count_in_code([code])
    assert found == {
        "kernels": 4,
        "generated": 2,
        "library_calls": 2,
        "loop_nests": 3,
        "names": ["cpp_fused_add_0", "extern_kernels.mm", "torch.ops.aten.sort.default", "cpp_fused_mul_1"],
    }


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_the_peak_of_eager_operators_is_what_is_alive_at_once():
    x = torch.randn(64, 1024)
    size = 4 * x.numel()
    for function, tensors in ((lambda: x + 1, 1), (lambda: torch.relu(x * 2 + 1) * 0.5 - 3, 2), (lambda: x.add_(0), 0)):
        scalars = peak_memory.allocation_peak(function) - tensors * size
        assert 0 <= scalars < 256


def test_gradients_are_made_anew_by_every_call():
    program = corpus.select("training_example_5_1")[0]
    function, inputs = program.instance()
    corpus.call(program, function, inputs)
    parameters = list(function.parameters())
    assert all(p.grad is not None for p in parameters)
    corpus.forget_gradients(function, inputs)
    assert all(p.grad is None for p in parameters)


def test_exceeding_eager_is_named():
    def record(eager, ours):
        return {"title": "t", "peers": {"eager": {"peak_bytes": eager}, "staxlab": ours}}

    assert not peak_memory.exceeds(record(1000, {"peak_bytes": 1000 + peak_memory.SLACK}))
    assert peak_memory.exceeds(record(1000, {"peak_bytes": 1001 + peak_memory.SLACK}))
    assert peak_memory.exceeds(record(1000, {"problem": "failed"}))
    assert not peak_memory.exceeds({"peers": {"eager": {"peak_bytes": 1}}})
    text = peak_memory.line({**record(1000, {"peak_bytes": 9000}), "exceeds_eager": True})
    assert "staxlab 8.79 KiB (9.00)  ABOVE EAGER" in text


def test_the_command_counts_in_a_process_of_its_own(tmp_path):
    out = tmp_path / "peak.json"
    command = [sys.executable, "-m", "benchmarks.peak_memory", "--peers", "eager,staxlab", "--out", str(out)]
    done = subprocess.run(
        [*command, "--programs", "example_1_1,softmax_five_operators,rms_norm,lstm_cell"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert record["above_eager"] == []
    peaks = {p["program"]: {peer: f["peak_bytes"] for peer, f in p["peers"].items()} for p in record["programs"]}
    assert peaks["example_1_1"]["eager"] == pytest.approx(2 * 1024 * 2048 * 4, abs=256)
    assert peaks["example_1_1"]["staxlab"] == 1024 * 4
    assert all(found["staxlab"] <= found["eager"] for found in peaks.values())
    plans = {p["program"]: p["peers"]["staxlab"]["planned_peak_bytes"]["forward"] for p in record["programs"]}
    assert plans == {name: found["staxlab"] for name, found in peaks.items()}
