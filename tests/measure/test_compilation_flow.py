"""The path of a compilation as a record (Figure 11.1): stages, shares, ways of kernels, and the rule that applied."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab import pipeline
from staxlab.compilation import STAGES
from staxlab.measure.compilation_flow import (
    NO_RECORDING,
    NOT_REACHED,
    ONE_OPERATOR,
    RAN,
    RESTORED,
    RULES,
    WHOLE_REGION,
    summary,
)


def several_ways(x, w):
    return (x @ w).sort(-1)[0] + torch.ones(3, 8).cumsum(0).sum()


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("STAXLAB_CACHE_DIR", str(tmp_path_factory.mktemp("empty")))  # nothing to restore
        return staxlab.explain(several_ways, torch.ones(4, 8), torch.ones(8, 8)).flow


def test_every_stage_of_an_inference_region_ran_and_shares_add_up(flow):
    names = [step.name for step in flow.steps]
    assert names == ["capture", "transforms", "operators", "loops", "schedule", "kernels", "wrapper", "artifact"]
    assert all(step.state == RAN and step.delivered and step.seconds > 0 for step in flow.steps)
    assert sum(map(flow.share, flow.steps)) == pytest.approx(1)
    assert flow.applied == () and flow.halves == ()


def test_kernels_are_counted_by_the_type_of_their_nodes(flow):
    assert flow.ways()["library"] >= 1 and sum(flow.ways().values()) == len(flow.kernels)
    for kernel in flow.kernels:
        assert (kernel.hit is None) == (kernel.way in ("library", "PyTorch", "no code")), kernel
        assert kernel.origins


def test_a_small_product_is_a_template(monkeypatch, tmp_path):
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path))
    flow = staxlab.explain(lambda x, w: x @ w, torch.ones(4, 4), torch.ones(4, 4)).flow
    assert flow.ways() == {"template": 1}


def test_a_restored_region_did_not_run_the_stages_in_its_plan(plans):
    compilations = [staxlab.explain(lambda x: x.sort(-1)[0].exp().sum(), torch.ones(4, 8)) for _ in range(2)]
    again = compilations[1].flow
    assert again.plan and "restored from a plan" in again.summary()
    states = {step.name: step.state for step in again.steps}
    assert [name for name, state in states.items() if state == RESTORED] == ["loops", "schedule", "kernels", "wrapper"]
    assert "loops" not in compilations[1].records, "looking at the path makes no record"
    assert again.ways()["library"] == 1, "a call with two results is one"
    assert all(kernel.origins for kernel in again.kernels if kernel.hit is not None)


def test_what_the_cache_had_is_told(flow):
    again = staxlab.explain(several_ways, torch.ones(4, 8), torch.ones(8, 8)).flow
    built = [kernel for kernel in again.kernels if kernel.hit is not None]
    assert built and all(kernel.hit and "found in the cache" in kernel.fate for kernel in built)
    assert f"{len(built)} of {len(built)} kernel" in again.summary()


def test_a_stage_that_fails_leaves_the_rule_of_the_region(monkeypatch, tmp_path):
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path))  # nothing to restore: the stage must run
    monkeypatch.setitem(pipeline.RUN, "schedule", lambda compilation: 1 // 0)
    with pytest.warns(staxlab.FallbackWarning):
        flow = staxlab.explain(lambda x: x + 1, torch.ones(3)).flow
    states = {step.name: step.state for step in flow.steps}
    assert states["loops"] == RAN and states["schedule"] == states["artifact"] == NOT_REACHED
    assert flow.applied == (WHOLE_REGION,) and "ZeroDivisionError" in flow.reasons[0]
    text = flow.format()
    assert "rule 2 (whole region, applied): the captured graph runs operator by operator" in text
    assert "why: stage 'schedule'" in text
    assert not flow.kernels and WHOLE_REGION in flow.rules_of("schedule")


def test_an_operator_without_a_lowering_is_a_rule_of_its_own():
    with pytest.warns(staxlab.FallbackWarning):
        flow = staxlab.explain(lambda x: torch.special.zeta(x, x) + 1, torch.full((3,), 2.0)).flow
    assert flow.applied == (ONE_OPERATOR,) and flow.ways()["PyTorch"] >= 1


def test_strict_mode_changes_what_the_rules_say():
    flow = staxlab.explain(lambda x: x + 1, torch.ones(3), strict_native=True).flow
    assert flow.outcome(ONE_OPERATOR) == "LoweringError"
    assert flow.outcome(0) == RULES[0].happens  # the same in both


def test_a_recording_that_cannot_be_is_a_rule_as_well():
    flow = staxlab.explain(lambda x: x.sin() + 1, torch.ones(3), mode="reduce-overhead").flow
    assert flow.applied == (NO_RECORDING,) and "CPU" in flow.reasons[0]
    assert f"rule {NO_RECORDING + 1} (no recording, applied)" in flow.format()


def test_a_target_that_is_not_here_is_not_built():
    flow = staxlab.explain(lambda x: x.sin() + 1, torch.ones(3), target="sm_90").flow
    (kernel,) = flow.kernels
    assert kernel.way == "Triton" and kernel.fate == "not built: the target is not here"
    assert {step.name: step.state for step in flow.steps}["artifact"] == NOT_REACHED


def test_the_gradient_as_a_program_stands_beside_the_halves():
    compiled = staxlab.compile(lambda x: x.sin().sum(), options={"double_backward": True})
    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    gradient.sum().backward()
    names = [name for name, _ in compiled.versions[0].region.flow.halves]
    assert "The gradient as a program" in names


def test_a_shorter_backend_does_not_reach_the_rest():
    flow = staxlab.explain(lambda x: x + 1, torch.ones(3), backend="eager").flow
    assert [step.name for step in flow.steps if step.state == RAN] == ["capture", "transforms"]
    assert flow.applied == ()


def test_an_outside_backend_stands_in_the_place_of_later_stages():
    def theirs(graph_module, example_inputs):
        return lambda *inputs: graph_module(*inputs)

    flow = staxlab.explain(lambda x: x + 1, torch.ones(3), backend=theirs).flow
    assert [step.name for step in flow.steps] == ["capture", "transforms", "outside"]
    assert flow.steps[-1].delivered == "theirs was given 1 operation" and flow.backend == "theirs"


def test_a_training_region_has_both_halves():
    flow = staxlab.explain(lambda x: (x.exp() * x).sum(), torch.ones(3, requires_grad=True)).flow
    assert {"joint", "partition"} <= {step.name for step in flow.steps}
    ((name, half),) = flow.halves
    assert name == "Backward half" and half.steps[0].name == "operators" and half.kernels
    assert "=== Backward half" in flow.format()


def test_every_stage_has_a_line_for_what_it_delivered():
    compilation = staxlab.explain(
        lambda x: (x.exp() * x).sum(), torch.ones(3, requires_grad=True), options={"validate": True}
    )
    ran = [stage.name for stage, _ in compilation.stages()]
    assert {stage.name for stage in STAGES} - set(ran) <= {"outside"}
    for stage, record in compilation.stages():
        assert summary(stage.name, record), stage.name
    assert summary("capture", None) == "" and summary("a stage of somebody else", object()) == ""
