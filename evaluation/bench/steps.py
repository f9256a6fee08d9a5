"""Engine steps of a given number of rows, in turn with their bare arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from entropycache import CachePolicy, Decoding, Plan, SequenceState
from entropycache.engine import ActiveSequence, advance, start_sequence, start_state
from entropycache.flops import step_flops
from entropycache.models.transformer import Model, Transformer
from entropycache.recorder import Clock, Recorder
from evaluation.bench.model import bare_arithmetic
from evaluation.bench.timing import in_turn, ratio


class FixedRows(CachePolicy):
    """Computes exactly so many rows a step: those that the predicted rows are read from, and the others nearest to
    them. Asks for the entropy, as EntropyCache does.
    """

    needs_entropy = True

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def start(self, model: Model, state: SequenceState) -> None:
        self.model = model
        self.compute: Int[Tensor, " q"] | None = None  # of the step that is made again and again

    def plan(self, state: SequenceState, predict: Int[Tensor, " p"]) -> Plan:
        if state.step == 0 or self.rows >= state.length:
            return Plan(state.all_rows, refresh=True)
        if self.compute is None:
            sources = self.model.sources(predict)
            others = state.all_rows[~torch.isin(state.all_rows, sources)]
            near = (others - sources[-1]).abs().argsort(stable=True)[: self.rows - len(sources)]
            self.compute = torch.cat([sources, others[near]]).sort().values
        return Plan(self.compute, refresh=False)


def prompt_of(model: Transformer, length: int, seed: int = 0) -> Int[Tensor, " n"]:
    """Random token ids."""
    return torch.randint(0, model.spec.vocab // 2, (length,), generator=torch.Generator().manual_seed(seed))


def step_call(model: Transformer, prompt: int, canvas: int, computed: int, predicted: int) -> Callable[[], Any]:
    """A call that makes the same engine step again and again: candidates, plan, forward, commit, entropy, observe."""
    decoding = Decoding(canvas, window="sliding", window_length=predicted)
    clock = Clock(model.device)
    sequence = start_sequence(
        0,
        start_state(prompt_of(model, prompt), decoding, model.spec),
        model,
        FixedRows(computed),
        decoding,
        seed=0,
        recorder=Recorder(clock, model.spec, trace=False),
    )
    step = repeated(sequence, model, clock)
    if computed < prompt + canvas:
        with torch.inference_mode():
            advance(model, [sequence], clock, predict_all=False)
    return step


def repeated(sequence: ActiveSequence, model: Model, clock: Clock) -> Callable[[], Any]:
    """A call that advances a sequence by one step from wherever it stands now, and takes the step back."""

    def call() -> None:
        before, block_step = sequence.state, sequence.decoder.block_step
        advance(model, [sequence], clock, predict_all=False)
        sequence.state, sequence.decoder.block_step = before, block_step

    return call


def predicted_rows(computed: int, config: Mapping[str, Any]) -> int:
    """Rows that the head reads in a step of so many rows: no more than are computed, nor than are masked after the
    first step.
    """
    return min(computed, config["predict"], config["canvas"] - 1)


def measure_steps(model: Transformer, config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One result for each prompt length and number of rows: medians in seconds, their ratio, and what they come to."""
    canvas = config["canvas"]
    for prompt in config["prompts"]:
        rows = prompt + canvas
        for computed in (*config["rows"], rows):
            predicted = predicted_rows(computed, config)
            times = in_turn(
                {
                    "step": step_call(model, prompt, canvas, computed, predicted),
                    "bare": bare_arithmetic(model, [computed], rows, predicted),
                },
                config["seconds"],
                model.device,
            )
            step, bare = median(times["step"]), median(times["bare"])
            flops = step_flops(model.spec, model.spec.layers * computed, rows, predicted)
            yield {
                "rows": rows,
                "computed": computed,
                "predicted": predicted,
                "step_seconds": step,
                "bare_seconds": bare,
                "ratio": ratio(times["step"], times["bare"]),
                "rounds": len(times["step"]),
                "gflops_per_second": flops / step / 1e9,
            }
