"""Whole models in their smallest size: each step is one region, without a fallback, with eager's values."""

from __future__ import annotations

import argparse
import json

import pytest
import torch

import staxlab
from benchmarks import whole_models
from benchmarks.models.cases import STEPS, select
from benchmarks.models.decoder import Decoder, DecoderConfig, generate
from benchmarks.models.recurrence import GatedCell

#: Half of the steps take seconds to compile; each model is run by day in one of its forms.
BY_DAY = ("decoder_generate", "vision", "recurrence")
CHOSEN = [pytest.param(step, marks=() if step.name in BY_DAY else pytest.mark.slow, id=step.name) for step in STEPS]


def options(**changes):
    given = {"device": "cpu", "dtype": "float32", "mode": None, "smoke": True, "readings": 1}
    return argparse.Namespace(**given | changes)


@pytest.mark.parametrize("step", CHOSEN)
def test_a_step_is_one_region_with_the_right_values(step, capsys):
    record = whole_models.run_step(step, "smoke", ["eager", "staxlab"], options())
    assert not record["problems"]
    found = record["peers"]["staxlab"]
    assert found["fallbacks"] == [] and found["regions"] == (2 if step.kind == "generation" else 1)
    assert found["kernels"] == found["generated"] + found["library_calls"] > 0
    if step.kind == "generation":
        assert record["values"]["staxlab"] == {"tokens_equal_to_eager": 1.0}
    else:
        assert record["values"]["staxlab"]["error"] < 1e-3
    json.dumps(record, allow_nan=False)
    assert step.title in capsys.readouterr().out


def test_the_cache_is_written_where_it_stands():
    step = next(step for step in STEPS if step.name == "decoder_decode")
    module = step.module("smoke")
    compiled = staxlab.compile(module, strict_native=True)
    (tokens, positions, mine), (_, _, eager) = (step.arguments("smoke", module) for _ in range(2))
    found, wanted = (
        step.call("smoke", f, module, (tokens, positions, c)) for f, c in ((compiled, mine), (module, eager))
    )
    torch.testing.assert_close(found, wanted)
    for one, other in zip(sum(mine, ()), sum(eager, ()), strict=True):
        torch.testing.assert_close(one, other)
    compilation = compiled.versions[0].compilation
    memory = compilation.schedule.memory
    assert len(memory.written_back) == len(memory.skipped) == 2 * module.config.layers
    assert memory.peak_bytes < mine[0][0].nbytes * 2, "nothing as large as the cache is made"


# --- The models themselves --------------------------------------------------------------------------------------------


def test_a_cache_changes_nothing():
    """Prefill and one token after the other give what one pass over all tokens gives."""
    torch.manual_seed(0)
    model = Decoder(DecoderConfig()).double().eval()
    tokens = torch.randint(256, (2, 9))
    with torch.no_grad():
        whole = model(tokens, torch.arange(9))
        cache = model.new_cache(2)
        found = [model(tokens[:, :6], torch.arange(6), cache)]
        found += [model(tokens[:, t : t + 1], torch.tensor([t]), cache) for t in range(6, 9)]
    torch.testing.assert_close(torch.stack(found, 1), whole[:, 5:], rtol=1e-10, atol=1e-10)


def test_generation_takes_the_largest_logit():
    torch.manual_seed(0)
    model = Decoder(DecoderConfig()).eval()
    prompt = torch.randint(256, (2, 5))
    found = generate(model, model, prompt, 4)
    with torch.no_grad():
        sequence = prompt
        for _ in range(4):
            logits = model(sequence, torch.arange(sequence.shape[1]))[:, -1]
            sequence = torch.cat((sequence, logits.argmax(-1, keepdim=True)), 1)
    assert torch.equal(found, sequence[:, 5:])
    with pytest.raises(ValueError, match="do not fit into a context of 64"):
        generate(model, model, prompt, 60)


def test_a_cell_is_pytorchs_gru_cell():
    torch.manual_seed(0)
    mine, theirs = GatedCell(5, 7).double(), torch.nn.GRUCell(5, 7).double()

    def reordered(t):  # PyTorch has the reset gate first
        reset, update, candidate = t.chunk(3)
        return torch.cat((update, reset, candidate))

    mine.load_state_dict({
        "from_input.weight": reordered(theirs.weight_ih), "from_input.bias": reordered(theirs.bias_ih),
        "from_state.weight": reordered(theirs.weight_hh), "from_state.bias": reordered(theirs.bias_hh),
    })  # fmt: skip
    x, state = torch.randn(3, 5, dtype=torch.double), torch.randn(3, 7, dtype=torch.double)
    torch.testing.assert_close(mine(x, state), theirs(x, state))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_sizes_are_what_they_say(step):
    assert set(step.sizes) == {"smoke", "cpu", "cuda"}
    with torch.device("meta"):
        for size in step.sizes.values():
            made = step.make(size.config)
            assert sum(p.numel() for p in made.parameters()) > 0
            assert size.prompt + size.count <= getattr(size.config, "context", 0) or not size.prompt


# --- The command ------------------------------------------------------------------------------------------------------


def test_a_wrong_peer_is_reported():
    step = select("vision")[0]
    reference = [torch.ones(3).double()]
    results = {"eager": [torch.full((3,), 1 + 1e-7).double()], "staxlab": [torch.full((3,), 1.01).double()]}
    found, wrong = whole_models.compared(step, results, reference)
    assert set(wrong) == {"staxlab"} and "off by 0.01" in wrong["staxlab"] and found["eager"]["error"] < 2e-7
    results["staxlab"] = [torch.full((3,), float("nan")).double()]
    assert "staxlab" in whole_models.compared(step, results, reference)[1]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"fallbacks": ["no kernel"], "regions": 1}, "fallback: no kernel"),
        ({"fallbacks": [], "regions": 3}, "3 regions instead of 1"),
        ({"fallbacks": [], "regions": 1}, None),
    ],
)
def test_what_is_not_one_region_is_said(found, words):
    assert whole_models.not_one_region(select("resnet")[0], found) == words


@pytest.mark.parametrize("arguments", [["--steps", "nonsense"], ["--peers", "nobody"], ["--dtype", "int8"]])
def test_the_command_refuses_what_it_does_not_know(arguments):
    with pytest.raises(SystemExit) as caught:
        whole_models.main([*arguments, "--smoke"])
    assert caught.value.code == 2


@pytest.mark.slow
def test_the_peak_is_counted_in_a_process_without_the_pool():
    (step,) = select("decoder_decode")
    module = step.module("smoke")
    eager = whole_models.prepare(step, "smoke", "eager", "cpu", torch.float32)
    found = whole_models.peak_without_pool(step, "smoke", "float32", None)
    cache = sum(part.nbytes for pair in module.new_cache(2) for part in pair)
    assert 0 < found < cache and found <= whole_models.peak_bytes(eager.run, "cpu") + 4096


INDUCTOR_ON_A_GPU = """
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''...''')
class Runner:
    def call(self, args):
        with torch.cuda._DeviceGuard(0):
            buf0 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
            extern_kernels.mm(arg0_1, arg1_1, out=buf0)
            buf1 = buf0; del buf0  # reuse
            stream0 = get_raw_stream(0)
            triton_poi_fused_add_0.run(buf1, arg2_1, 64, stream=stream0)
            buf2 = torch.ops.aten.convolution.default(buf1, arg3_1)
            triton_red_fused_sum_1.run(buf2, buf3, 8, 64, stream=stream0)
        return (buf3, )
"""


def test_kernels_in_the_inductors_code_for_a_gpu_are_counted():
    from benchmarks.kernel_counts import count_in_code

    found = count_in_code([INDUCTOR_ON_A_GPU])
    assert (found["kernels"], found["generated"], found["library_calls"]) == (4, 2, 2)
