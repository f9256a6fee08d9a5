"""Whole methods for some steps: the first, the later ones, deciding, packing, growing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import torch

from entropycache import CachePolicy, Decoding, Generation
from entropycache.engine import ActiveSequence, advance, start_sequence, start_state
from entropycache.models.transformer import Model, Transformer
from entropycache.recorder import DECISION_PHASES, Clock, Recorder
from evaluation.bench.model import bare_arithmetic
from evaluation.bench.steps import prompt_of
from evaluation.bench.timing import ratio, seconds
from evaluation.speed import unfused_seconds


@dataclass(frozen=True)
class Method:
    """A method as it is measured. `refresh_share`: how many of a canvas's steps after the first are taken to be
    refreshes where time per token is reckoned from a few steps; "blocks": the first of every block.
    """

    name: str
    policy: CachePolicy
    decoding: Mapping[str, Any]
    refresh_share: float | Literal["blocks"]

    def decode(self, canvas: int, schedule: Mapping[str, int]) -> Decoding:
        """Its decoding of a canvas, by the common schedule."""
        return Decoding(canvas, steps=canvas // schedule["block_length"] * schedule["steps"], **self.decoding)

    def refreshes(self, decoding: Decoding) -> float:
        """How many of a canvas's steps after the first are taken to be refreshes."""
        if self.refresh_share == "blocks":
            return decoding.blocks - 1
        return self.refresh_share * (decoding.total_steps - 1)


@dataclass(frozen=True)
class Measured:
    """A method's steps: seconds of the first and of each later one, each of these beside its bare arithmetic, and the
    sequences' record of the later ones.
    """

    first: float
    later: list[float]
    bare: list[float]
    tokens: int  # committed in the later steps
    canvases: list[list[int]]
    records: list[Generation]

    @property
    def step(self) -> float:
        return median(self.later)

    def seconds_per_token(self, steps: int, tokens: int, refreshes: float) -> float:
        """Of a canvas decoded in so many steps, if so many of those after the first were like the first."""
        return ((1 + refreshes) * self.first + (steps - 1 - refreshes) * self.step) / tokens


class Steps:
    """Some sequences of a method, packed, advanced step by step."""

    def __init__(self, model: Transformer, method: Method, decoding: Decoding, prompt: int, batch: int) -> None:
        self.model, self.clock = model, Clock(model.device)
        self.runner: Model = method.policy.wrap(model)
        self.active: list[ActiveSequence] = [
            start_sequence(
                index,
                start_state(prompt_of(model, prompt, seed=index), decoding, model.spec),
                self.runner,
                method.policy,
                decoding,
                index,
                self.recorder(),
            )
            for index in range(batch)
        ]

    def recorder(self) -> Recorder:
        return Recorder(self.clock, self.model.spec, trace=False)

    def buffer_bytes(self) -> int:
        """What the method keeps from step to step, beside the model: keys, values, and tensors of its own."""
        held = [vars(part) for sequence in self.active for part in (sequence.cache, sequence.policy)]
        tensors = [value for attributes in held for value in attributes.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.nbytes for tensor in tensors)

    def advance(self) -> None:
        with torch.inference_mode():
            done = advance(self.runner, self.active, self.clock, predict_all=False)
        assert not done, "the canvas was finished before the measurement was"

    def run(self, steps: int) -> Measured:
        """The first step and so many more."""
        first = seconds(self.advance, self.model.device)
        for sequence in self.active:
            sequence.recorder = self.recorder()
        masked, later, bare = self.masked(), [], []
        for _ in range(steps):
            took, call = self.counted()
            later.append(took)
            bare.append(seconds(call, self.model.device))
        return Measured(
            first,
            later,
            bare,
            masked - self.masked(),
            [sequence.state.tokens.tolist() for sequence in self.active],
            [sequence.recorder.finish(sequence.state, None, len(self.active)) for sequence in self.active],
        )

    def counted(self) -> tuple[float, Callable[[], object]]:
        """Seconds of the next step, and the bare arithmetic of the rows that it turned out to compute and to read. Rows
        that a method computes in some layers only are counted by their mean over layers.
        """
        read: list[int] = []
        hook = self.model.head.register_forward_hook(lambda module, inputs, logits: read.append(logits.shape[0]))
        before = [sequence.cache.rows_written for sequence in self.active]
        took = seconds(self.advance, self.model.device)
        hook.remove()
        written = [sequence.cache.rows_written - was for sequence, was in zip(self.active, before, strict=True)]
        computed = [max(1, round(rows / self.model.spec.layers)) for rows in written]
        return took, bare_arithmetic(self.model, computed, self.active[0].state.length, sum(read))

    def masked(self) -> int:
        return sum(int(sequence.state.masked.sum()) for sequence in self.active)


def deciding(model: Transformer, measured: Measured) -> dict[str, float]:
    """Seconds a step spent only to decide what to compute, by part; the unfused attention path is a part of its own."""
    parts = dict.fromkeys((*DECISION_PHASES, "unfused_attention"), 0.0)
    for record in measured.records:
        for phase in DECISION_PHASES:
            parts[phase] += record.seconds[phase]
        if record.seconds["observer"]:
            parts["unfused_attention"] += unfused_seconds(model, record)
    return {part: spent / len(measured.later) for part, spent in parts.items()}


def measure_methods(
    model: Transformer, methods: list[Method], config: Mapping[str, Any], schedule: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """One result for each method, prompt length and number of packed sequences."""
    canvas = config["canvas"]
    for prompt in config["prompts"]:
        for method in methods:
            decoding = method.decode(canvas, schedule)
            known: list[list[int]] = []
            Steps(model, method, decoding, 1, 1).run(1)  # what is only slow at first stays out of the figures
            for batch in config["batches"]:
                steps = Steps(model, method, decoding, prompt, batch)
                measured = steps.run(config["steps"] or decoding.total_steps - 1)
                parts, step = deciding(model, measured), sum(measured.later) / len(measured.later)
                per_token = measured.seconds_per_token(decoding.total_steps, batch * canvas, method.refreshes(decoding))
                decided = sum(parts.values())
                yield {
                    "method": method.name,
                    "rows": prompt + canvas,
                    "batch_size": batch,
                    "first_step_seconds": measured.first,
                    "step_seconds": measured.step,
                    "bare_seconds": median(measured.bare),
                    "ratio": ratio(measured.later, measured.bare),
                    "steps": len(measured.later),
                    "rows_computed": sum(record.rows_computed for record in measured.records) / len(measured.later),
                    "tokens_per_second": measured.tokens / sum(measured.later),
                    "seconds_per_token": per_token,
                    # of later steps as measured, and of a canvas with its refreshes
                    "decision_share": decided / step,
                    "decision_share_of_canvas": decided * decoding.total_steps / (per_token * batch * canvas),
                    "decision_parts": parts,
                    "same_tokens": all(a == b for a, b in zip(known, measured.canvases, strict=False)),
                }
                known = max(known, measured.canvases, key=len)
