"""The decoding loop: candidates, plan, forward, commit, for one sequence or several packed into each step.

Everything is per sequence (state, decoder, policy, cache, recorder) except the forward pass, in which the rows of all
sequences under way travel together. A finished sequence makes room for the next at once, and a sequence's tokens do not
depend on its neighbours.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entropycache.decoding import Decoder, Decoding, entropy_
from entropycache.kv_cache import KVCache
from entropycache.memory import check_fits, is_out_of_memory
from entropycache.models.transformer import AttentionObserver, Model, StepInput
from entropycache.policy import CachePolicy
from entropycache.recorder import Clock, PeakMemory, Recorder
from entropycache.settings import whole
from entropycache.types import Commit, Generation, ModelSpec, Plan, SequenceState

Prompt = Sequence[int] | Int[Tensor, " n"]


@overload
def generate(
    model: Model,
    prompt_ids: Sequence[int] | Tensor,
    policy: CachePolicy,
    decoding: Decoding,
    *,
    seed: int = ...,
    trace: bool = ...,
    batch_size: int = ...,
    predict_all: bool = ...,
) -> Generation: ...


@overload
def generate(
    model: Model,
    prompt_ids: Sequence[Prompt],
    policy: CachePolicy,
    decoding: Decoding,
    *,
    seed: int = ...,
    trace: bool = ...,
    batch_size: int = ...,
    predict_all: bool = ...,
) -> list[Generation]: ...


def generate(
    model: Model,
    prompt_ids: Prompt | Sequence[Prompt],
    policy: CachePolicy,
    decoding: Decoding,
    *,
    seed: int = 0,
    trace: bool = False,
    batch_size: int = 8,
    predict_all: bool = False,
) -> Generation | list[Generation]:
    """Decode a canvas behind one prompt, or behind each of a list of prompts (up to `batch_size` packed into each
    step).

    `policy` is configuration: every sequence gets a fresh copy. `trace=True` keeps a StepRecord for each forward pass.
    `seed` matters only at a temperature. `predict_all=True` runs the head over every computed row, to measure what
    reading only the predicted ones saves.

    Raises ValueError where a prompt does not fit the model: too long for its positions, or an id outside its
    vocabulary.
    """
    single = isinstance(prompt_ids, Tensor) or not prompt_ids or isinstance(prompt_ids[0], int)
    prompts = cast("list[Prompt]", [prompt_ids] if single else list(prompt_ids))
    options: dict[str, Any] = {"seed": seed, "trace": trace, "batch_size": batch_size, "predict_all": predict_all}
    finished = dict(stream(model, prompts, policy, decoding, **options))
    return finished[0] if single else [finished[index] for index in range(len(prompts))]


def stream(
    model: Model,
    prompts: Sequence[Prompt],
    policy: CachePolicy,
    decoding: Decoding,
    *,
    seed: int = 0,
    trace: bool = False,
    batch_size: int = 8,
    predict_all: bool = False,
) -> Iterator[tuple[int, Generation]]:
    """As `generate` for a list of prompts, but yields (index, Generation) as each sequence finishes, in order of
    finishing.

    Where memory runs out all the same, the batch is halved, with a warning, and the sequences under way start again:
    what they become does not depend on the batch, and those already given are safe.

    Raises ValueError, before the first sequence, where `batch_size` of them are not expected to fit into memory.
    """
    batch_size = whole("batch_size", batch_size, 1, "sequences")
    starts = start_states(model, prompts, policy, decoding, batch_size, predict_all)
    runner = policy.wrap(model)
    memory, clock = PeakMemory(model.device), Clock(model.device)
    waiting = list(range(len(starts)))[::-1]
    active: list[ActiveSequence] = []
    while waiting or active:
        try:
            while waiting and len(active) < batch_size:
                if not active:
                    memory.reset()
                index, tried = waiting[-1], len(active) + 1
                recorder = Recorder(clock, model.spec, trace)
                active.append(start_sequence(index, starts[index], runner, policy, decoding, seed, recorder))
                waiting.pop()
            tried = len(active)
            with torch.inference_mode():
                done = advance(runner, active, clock, predict_all)
        except (RuntimeError, MemoryError) as error:
            if tried == 1 or not is_out_of_memory(error):
                raise
            done = None
        if done is None:  # outside the handler, whose error holds on to the step's tensors
            batch_size = halve(tried, model.device)
            waiting += [sequence.index for sequence in reversed(active)]
            active.clear()
            continue
        finished = [
            (sequence.index, sequence.recorder.finish(sequence.filled(model.spec), memory.read(), batch_size))
            for sequence in done
        ]
        active = [sequence for sequence in active if sequence not in done]
        del done  # their caches would stand beside those of the sequences that start next
        yield from finished


def halve(batch_size: int, device: torch.device) -> int:
    """The batch to go on with where one of this size was too large, said aloud."""
    smaller = max(1, batch_size // 2)
    warnings.warn(f"out of memory with batch_size {batch_size} on {device}: going on with {smaller}", stacklevel=3)
    return smaller


@dataclass(eq=False)
class ActiveSequence:
    """A sequence under way: the only mutable thing in the loop."""

    index: int
    state: SequenceState
    policy: CachePolicy
    decoder: Decoder
    cache: KVCache
    recorder: Recorder

    def filled(self, spec: ModelSpec) -> SequenceState:
        """The final state; masks that `stop_early` left behind the answer become EOS."""
        left = self.state.masked_rows(0, self.state.length)
        if not left.numel():
            return self.state
        return self.state.apply(Commit(left, torch.full_like(left, spec.eos_id), torch.ones(left.shape)))


def start_sequence(
    index: int,
    state: SequenceState,
    runner: Model,
    policy: CachePolicy,
    decoding: Decoding,
    seed: int,
    recorder: Recorder,
) -> ActiveSequence:
    """A fresh sequence with its own copy of the policy, decoder and cache."""
    own_policy = copy.deepcopy(policy)
    own_policy.start(runner, state)
    decoder = Decoder(decoding, runner.spec, seed)
    return ActiveSequence(index, state, own_policy, decoder, runner.new_cache(state.length), recorder)


def advance(model: Model, active: Sequence[ActiveSequence], clock: Clock, predict_all: bool) -> list[ActiveSequence]:
    """One forward pass for every sequence that still has something to decode; returns those that are finished."""
    stepping: list[tuple[ActiveSequence, Plan, StepInput]] = []
    candidates: list[Tensor | None] = []
    done: list[ActiveSequence] = []
    for sequence in active:
        state, policy, span = sequence.state, sequence.policy, sequence.recorder.span
        began = clock.mark()
        up = sequence.decoder.candidates(state)
        if not up.numel():
            done.append(sequence)
            continue
        found = clock.mark()
        plan = policy.plan(state, up)
        planned = clock.mark()
        span("candidates", began, found)
        span("plan", found, planned)
        predict = up if plan.predict is None else plan.predict
        compute = plan.compute if plan.refresh else union(plan.compute, model.sources(predict))
        check_plan(plan, compute, predict, state)
        observer = timed(policy.observer(), sequence.recorder, clock)
        stepping.append(
            (sequence, plan, StepInput(state.tokens, compute, predict, sequence.cache, observer, predict_all))
        )
        candidates.append(None if plan.predict is None else up)
    if not stepping:
        return done

    written = [step.cache.rows_written for _, _, step in stepping]
    began = clock.mark()
    logits = model.forward_packed([step for _, _, step in stepping])
    ended = clock.mark()
    total = sum(step.compute.numel() for _, _, step in stepping)

    parts = logits.split([step.predict.numel() for _, _, step in stepping])
    for (sequence, plan, step), up_now, own, before in zip(stepping, candidates, parts, written, strict=True):
        sequence.recorder.span("forward", began, ended, share=step.compute.numel() / total)
        began_commit = clock.mark()
        reading = sequence.decoder.read(own, step.predict, sequence.state)
        commit = sequence.decoder.decide(reading, step.predict, sequence.state, plan.commit_all, up_now)
        check_commit(commit, step.predict, sequence)
        committed = clock.mark()
        sequence.recorder.span("commit", began_commit, committed)
        if sequence.policy.needs_entropy or sequence.recorder.trace:
            commit = with_entropy(commit, reading.log_probability, step.predict)
            read = clock.mark()
            # An entropy that only a trace asks for decides nothing.
            sequence.recorder.span("entropy" if sequence.policy.needs_entropy else "commit", committed, read)
            committed = read
        sequence.state = sequence.state.apply(commit)
        applied = clock.mark()
        sequence.recorder.span("commit", committed, applied)
        sequence.policy.observe(sequence.state, commit)
        sequence.recorder.span("observe", applied, clock.mark())
        head_rows = step.compute.numel() if predict_all else step.predict.numel()
        rows = step.cache.rows_written - before
        sequence.recorder.step(plan, step.compute, step.predict, commit, sequence.state, rows, head_rows)
    return done


def start_states(
    model: Model,
    prompts: Sequence[Prompt],
    policy: CachePolicy,
    decoding: Decoding,
    batch_size: int,
    predict_all: bool = False,
) -> list[SequenceState]:
    """Every prompt with its canvas.

    Raises ValueError where the method does not work with the decoding's window, a prompt does not fit the model, or
    `batch_size` of them are not expected to fit into memory.
    """
    check_window(policy, decoding)
    starts = [start_state(prompt, decoding, model.spec) for prompt in prompts]
    check_fits(model, policy, decoding, [state.length for state in starts], batch_size, predict_all)
    return starts


def start_state(prompt: Prompt, decoding: Decoding, spec: ModelSpec) -> SequenceState:
    """A prompt and its canvas of masks, refused where it does not fit the model."""
    ids = torch.as_tensor(prompt, dtype=torch.long, device="cpu").reshape(-1)
    rows = ids.numel() + decoding.gen_length
    if rows > spec.max_positions:
        raise ValueError(
            f"prompt of {ids.numel()} tokens + gen_length {decoding.gen_length} = {rows} rows exceed the model's "
            f"{spec.max_positions} positions; a prompt of {spec.max_positions - decoding.gen_length} tokens would do"
        )
    outside = ids[(ids < 0) | (ids >= spec.vocab)]
    if outside.numel():
        raise ValueError(f"prompt token id {int(outside[0])} is outside the model's vocabulary 0..{spec.vocab - 1}")
    return SequenceState.start(ids, decoding.gen_length, spec.mask_id)


def union(rows: Int[Tensor, " q"], more: Int[Tensor, " p"]) -> Int[Tensor, " r"]:
    """Sorted union of two sets of rows."""
    return torch.cat([rows, more]).unique()


def with_entropy(commit: Commit, log_probability: Float[Tensor, "p v"], predict: Int[Tensor, " p"]) -> Commit:
    """The commit with the entropy of its tokens' distributions: only the committed rows are read, O(vocabulary)
    each.
    """
    at = torch.searchsorted(predict, commit.rows).to(log_probability.device)
    return replace(commit, entropy=entropy_(log_probability[at]).cpu())


def timed(observer: AttentionObserver | None, recorder: Recorder, clock: Clock) -> AttentionObserver | None:
    """The same observer, its time recorded as a phase of its own."""
    if observer is None:
        return None

    def watch(layer: int, weights: Tensor) -> object:
        began = clock.mark()
        seen = observer(layer, weights)
        recorder.span("observer", began, clock.mark())
        return seen

    return watch


def check_window(policy: CachePolicy, decoding: Decoding) -> None:
    """Raises ValueError where a method does not work with the decoding's window."""
    if decoding.window not in policy.windows:
        raise ValueError(
            f"{type(policy).__name__} does not work with window {decoding.window!r}; "
            f"{' or '.join(policy.windows)} would do"
        )


def check_plan(plan: Plan, compute: Tensor, predict: Tensor, state: SequenceState) -> None:
    """What the loop relies on, whatever the policy."""
    assert predict.numel(), "the policy left no row to predict"
    assert state.step > 0 or plan.refresh, "the first plan must be a refresh"
    assert not plan.refresh or compute.numel() == state.length, "a refresh computes every row"
    assert state.masked[predict].all(), "only masked rows can be predicted"


def check_commit(commit: Commit, predict: Tensor, sequence: ActiveSequence) -> None:
    """What a commit must be, whatever the decoding."""
    decoder = sequence.decoder
    assert len(commit) or decoder.decoding.rule == "timestep", "a step must commit at least one token"
    assert torch.isin(commit.rows, predict).all(), "a row was committed that was not predicted"
    assert not torch.isin(commit.tokens, torch.tensor(decoder.forbidden)).any(), "a forbidden token was committed"
