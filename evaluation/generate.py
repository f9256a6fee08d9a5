"""From questions to samples: decode, cut at the first end token, and record what it cost (DESIGN.md §5)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from entropycache import CachePolicy, Decoding, Generation, stream
from entropycache.engine import start_states
from entropycache.models.checkpoint import FAMILIES
from entropycache.models.tokenizer import Tokenizer
from entropycache.models.transformer import Transformer
from entropycache.recorder import DECISION_PHASES
from evaluation.benchmarks import Request
from evaluation.statistics import generated_tokens, is_empty, is_truncated
from evaluation.store import Run

Sample = dict[str, Any]


@dataclass(frozen=True)
class Answerer:
    """Everything that turns a prompt into an answer: model, tokenizer, cache policy, decoding.

    `chat` wraps a question in the family's chat template. `bos` puts the family's BOS before a prompt that does not
    begin with it, so that a prompt never has two. `trace` keeps step records: of every question, of none, or of the
    first so many. `predict_all` runs the head over every computed row (`generate`).
    """

    model: Transformer
    tokenizer: Tokenizer
    policy: CachePolicy
    decoding: Decoding
    chat: bool
    bos: bool
    seed: int = 0
    batch_size: int = 1
    trace: bool | int = False
    predict_all: bool = False

    def chat_template(self) -> Callable[[str], str] | None:
        """The template for one user turn, None for a model without one."""
        if not self.chat:
            return None
        template = FAMILIES[self.model.spec.family].chat_template
        return lambda content: template.replace("{content}", content)

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of a rendered prompt, with exactly one BOS where the model is to have one."""
        ids = self.tokenizer.encode(text)
        bos = self.model.spec.bos_id
        return [bos, *ids] if self.bos and bos is not None and ids[:1] != [bos] else ids

    def generations(self, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, Generation]]:
        """(index, Generation) of each prompt as it finishes."""
        yield from stream(
            self.model,
            prompts,
            self.policy,
            self.decoding,
            seed=self.seed,
            trace=bool(self.trace),
            batch_size=self.batch_size,
            predict_all=self.predict_all,
        )

    def text(self, generation: Generation) -> str:
        """The answer: the canvas before its first end token."""
        canvas = generation.tokens.tolist()
        return self.tokenizer.decode(canvas[: generated_tokens(canvas, self.model.spec.stop_ids)])

    def samples(self, requests: Sequence[Request]) -> Iterator[tuple[Sample, list[dict[str, Any]] | None]]:
        """Each question's sample as it finishes, with its step records where a trace is kept."""
        prompts = [self.prompt_ids(request.prompt_text) for request in requests]
        # what cannot be decoded is refused before the first of them
        start_states(self.model, prompts, self.policy, self.decoding, self.batch_size, self.predict_all)
        for traced in (True, False):
            asked = [place for place, request in enumerate(requests) if self.traces(request.index) == traced]
            generations = replace(self, trace=traced).generations([prompts[place] for place in asked])
            for index, generation in generations:
                steps = [step_row(asdict(step)) for step in generation.steps] if traced else None
                yield question(requests[asked[index]]) | self.answer(generation), steps

    def traces(self, index: int) -> bool:
        """Whether step records are kept of the question of this index."""
        return self.trace is True or index < self.trace

    def answer(self, generation: Generation) -> dict[str, Any]:
        """What a sample records of an answer: the canvas, its text, and what it cost."""
        canvas, ends = generation.tokens.tolist(), self.model.spec.stop_ids
        tokens = generated_tokens(canvas, ends)
        return {
            "prompt_tokens": generation.prompt_length,
            "tokens": canvas,
            "text": self.text(generation),
            "generated_tokens": tokens,
            "tokens_per_step": tokens / generation.nfe,
            "empty": is_empty(canvas, ends),
            "truncated": is_truncated(canvas, ends),
            "batch_size": generation.batch_size,
            **costs(generation),
        }


def question(request: Request) -> dict[str, Any]:
    """What a sample records of its question."""
    return {
        "id": request.id,
        "index": request.index,
        "subtask": request.subtask,
        "doc": request.doc,
        "target": request.target,
        "prompt": request.prompt_text,
        "prompt_sha256": hashlib.sha256(request.prompt_text.encode()).hexdigest(),
    }


def costs(generation: Generation) -> dict[str, Any]:
    """What a generation cost, as samples and speed runs record it. Seconds are generation time alone."""
    parts = {phase: generation.seconds[phase] for phase in DECISION_PHASES}
    return {
        "seconds": generation.total_seconds,
        "steps": generation.nfe,
        "refreshes": generation.refreshes,
        "rows_computed": generation.rows_computed,
        "rows_total": generation.rows_total,
        "recompute_ratio": generation.rows_computed / generation.rows_total,
        "flops": generation.flops,
        "decision_seconds": sum(parts.values()),
        "decision_parts": parts,
        "peak_memory_bytes": generation.peak_memory_bytes,
    }


def step_row(step: dict[str, Any]) -> dict[str, Any]:
    """A step record as a row of `steps.parquet`: its seconds by phase become columns."""
    seconds = step.pop("seconds")
    return {**step, **{f"seconds_{phase}": spent for phase, spent in seconds.items()}}


def generate_run(
    run: Run, answerer: Answerer, requests: Sequence[Request], progress: Callable[[Sample], None] | None = None
) -> None:
    """Make the samples that a run still lacks and write each as it finishes; `progress` is called after each.

    Raises evaluation.files.StoreError where a sample cannot be written; those before it are safe.
    """
    missing = [requests[index] for index in run.missing]
    for sample, steps in answerer.samples(missing):
        run.append(sample, steps)
        if progress is not None:
            progress(sample)
