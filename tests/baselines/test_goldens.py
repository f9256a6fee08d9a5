"""Fast-dLLM and d2Cache against the public references: tokens, order, forward passes, rows computed; in float64."""

from __future__ import annotations

import pytest
import torch

from entropycache import Decoding
from entropycache.decoding import Decoder
from entropycache.types import SequenceState
from tests.baselines import golden
from tests.baselines.golden import GEN_LENGTH, Golden

# A budget of 64/steps tokens a pass, what it leaves carried over: no rule of ours (see below).
BUDGET = "nocache/confidence_threshold/"
RANDOM = "/origin/"  # Dream's random order draws from the reference's own generator

COVERED = [run for run in golden.runs() if BUDGET not in run.setting and RANDOM not in run.setting]
CACHED = [run for run in COVERED if run.setting.startswith(("prefix", "dual", "d2/"))]
BUDGETED = [run for run in golden.runs() if BUDGET in run.setting]


def keys(chosen: list[Golden]) -> list[str]:
    return [run.key for run in chosen]


def of_prompt(chosen: list[Golden], *prompts: str) -> list[Golden]:
    return [run for run in chosen if run.prompt in prompts]


def told_apart_elsewhere(run: Golden) -> bool:
    """Block lengths of the authors' Fast-dLLM other than 16 at any but the middle threshold, and d2Cache's inflation
    where nearly every mask is chosen anyway: left to the slow sweep."""
    larger_blocks = run.reference == "Fast-dLLM" and "/b16/" not in run.setting and not run.setting.endswith("t0.6")
    return larger_blocks or "k32-w4" in run.setting


FAST = [run for run in of_prompt(CACHED, "p02") if not told_apart_elsewhere(run)]
REST = [run for run in COVERED if run not in FAST]
ROBUST = [run for run in of_prompt(CACHED, "p06") if run.robust]


@pytest.mark.parametrize("run", FAST, ids=keys(FAST))
def test_settings_of_the_cached_methods_as_recorded(run):
    assert run.queries is not None
    assert golden.differences(run, golden.replay(run)) == []


@pytest.mark.slow
@pytest.mark.parametrize("run", REST, ids=keys(REST))
def test_every_other_recorded_run(run):
    assert golden.differences(run, golden.replay(run)) == []


@pytest.mark.slow
@pytest.mark.parametrize("run", ROBUST, ids=keys(ROBUST))
def test_robust_runs_in_float32(run):
    assert golden.differences(run, golden.replay(run, torch.float32)) == []


def test_the_recorded_runs_are_all_there():
    groups = {"Fast-dLLM": 0, "d2Cache": 0, "ML-GSAI": 0, "Dream(Fast-dLLM copy)": 0}
    for run in golden.runs():
        groups[run.reference] += 1
    assert groups == {"Fast-dLLM": 420, "d2Cache": 336, "ML-GSAI": 36, "Dream(Fast-dLLM copy)": 60}
    assert len(CACHED) == 6 * 98 and len(FAST) == 66 and all(run.queries for run in FAST)


# The settings that cannot agree: Dream's threshold sampler without a cache. There, a pass commits the rows over the
# threshold, but no more than a budget of gen_length/steps, to which what earlier passes left unused is added; our
# threshold rule knows no budget.


def test_a_budget_is_no_rule_of_ours():
    """Minimal example: four rows all but certain, threshold .9. The reference with 2 tokens a pass takes two of them;
    we take all four, as Fast-dLLM does on LLaDA and in its cached passes on Dream."""
    spec = golden.model("dream-tiny").spec
    state = SequenceState.start(torch.tensor([1, 2, 3]), 4, spec.mask_id)
    logits = torch.zeros(4, spec.vocab, dtype=torch.float64)
    logits[:, 7] = 20
    decoding = Decoding(gen_length=4, window="whole", rule="threshold", threshold=0.9, steps=2)
    decoder = Decoder(decoding, spec)
    assert len(decoder.commit(logits, decoder.candidates(state), state)) == 4


def passes_until_the_budget_binds(run: Golden) -> int:
    """Passes in which the budget of the reference was not used up, from the first."""
    budget = GEN_LENGTH // int(run.setting.split("/")[2][1:])
    committed = 0
    for index, step in enumerate(run.steps):
        committed += len(step)
        if committed == budget * (index + 1):
            return index
    return len(run.steps)


@pytest.mark.parametrize("run", of_prompt(BUDGETED, "p02"), ids=keys(of_prompt(BUDGETED, "p02")))
def test_the_budget_is_all_that_differs(run):
    """As long as the budget is not used up we agree; in the first pass in which it is, the reference took as many of
    the rows that we take as the budget allows."""
    out = golden.replay(run)
    ours = [[row - out.prompt_length for row in step.committed] for step in out.steps]
    bound = passes_until_the_budget_binds(run)
    assert ours[:bound] == run.steps[:bound]
    if bound == len(run.steps):
        assert golden.differences(run, out) == []
    else:
        assert set(run.steps[bound]) <= set(ours[bound])
