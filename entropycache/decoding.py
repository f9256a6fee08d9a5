"""Which masked rows are up in a step, and which of them are committed: windows, commit rules, confidence and entropy,
each once.

`Decoding` is the configuration, checked where it is made. `Decoder` is one sequence's decoder: it owns the two
questions `candidates(state)` and `commit(logits, predict, state)` and knows neither the model nor the cache.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from entropycache.settings import choice, flag, real, whole
from entropycache.types import Commit, ModelSpec, SequenceState

Window = Literal["blockwise", "sliding", "whole"]
Rule = Literal["top_n", "timestep", "threshold", "factor"]
Confidence = Literal["probability", "margin", "negative_entropy"]
Eos = Literal["decode_all", "stop_early"]

MANY_TOKENS_A_STEP = 4  # a fixed schedule above this is warned about
TIMESTEP_EPS = 1e-3  # Dream's sampler ends its schedule at t = eps, not 0


@dataclass(frozen=True)
class Decoding:
    """How a canvas of `gen_length` rows is decoded.

    Windows: `blockwise` takes the masked rows of the leftmost block (of `block_length`) that has any; `sliding` the
    leftmost `window_length` masked rows; `whole` every masked row.

    Rules: `top_n` splits a block's masks over its steps as evenly as can be, the remainder first (`steps` in all; one
    token a step by default); `timestep` is Dream's sampler, int(masks·(1 - s/t)) a step and the rest in the last;
    `threshold` commits every row whose score reaches `threshold`, and the best one if none does; `factor` commits the n
    best, n the largest with (n+1)·(1 - n-th best score) < `factor`, at least one (Fast-dLLM, arXiv 2505.22618).

    The score is the chosen token's `probability`, its `margin` over the runner-up, or the `negative_entropy`, all of
    the raw logits' softmax; with `certainty_sigma` it is multiplied by d2Cache's certainty density. Ties go to the
    lower row.

    `temperature` > 0 samples the token with Gumbel noise drawn from the seed, the step and the row; score and entropy
    stay those of the raw logits. `eos="stop_early"` ends once an EOS is committed and no mask is left before it.
    `eos_suppression` ranks rows whose token is EOS or EoT behind all others. `forbid` names tokens never committed:
    "mask", "eos", or ids.

    Raises ValueError, naming the value and what would do.
    """

    gen_length: int
    window: Window = "blockwise"
    block_length: int | None = None
    window_length: int | None = None
    rule: Rule = "top_n"
    steps: int | None = None
    threshold: float | None = None
    factor: float | None = None
    confidence: Confidence = "probability"
    certainty_sigma: float | None = None
    temperature: float = 0.0
    eos: Eos = "decode_all"
    eos_suppression: bool = False
    forbid: Sequence[str | int] = ("mask",)

    def __post_init__(self) -> None:
        forbid = (self.forbid,) if isinstance(self.forbid, str | int) else tuple(self.forbid)
        object.__setattr__(self, "forbid", forbid)
        for name in ("gen_length", "block_length", "window_length", "steps"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name, value, 1))
        for name, within, would in (
            ("threshold", lambda x: not math.isnan(x), "a number"),
            ("factor", lambda x: x > 0, "a number above 0"),
            ("certainty_sigma", lambda x: x > 0, "a number of rows above 0"),
            ("temperature", lambda x: 0 <= x < math.inf, "0 (greedy) or above"),
        ):
            if (value := getattr(self, name)) is not None:
                real(name, value, within, would)
        flag("eos_suppression", self.eos_suppression)
        for name, kind in (("window", Window), ("rule", Rule), ("confidence", Confidence), ("eos", Eos)):
            choice(name, getattr(self, name), get_args(kind))
        self._check_needs("window", "blockwise", "block_length")
        self._check_needs("window", "sliding", "window_length")
        self._check_needs("rule", "threshold", "threshold")
        self._check_needs("rule", "factor", "factor")
        if self.gen_length % self.block:
            would = " or ".join(map(str, multiples_around(self.gen_length, self.block)))
            raise ValueError(
                f"gen_length {self.gen_length} is not a multiple of block_length {self.block}; "
                f"gen_length {would} would do, or block_length {nearest_divisors(self.gen_length, self.block)}"
            )
        if self.total_steps % self.blocks:
            would = " or ".join(map(str, multiples_around(self.total_steps, self.blocks)))
            raise ValueError(
                f"steps {self.total_steps} is not a multiple of the {self.blocks} blocks "
                f"(gen_length {self.gen_length} / block_length {self.block}); steps {would} would do"
            )
        if (self.tokens_a_step or 0) > MANY_TOKENS_A_STEP:
            warnings.warn(
                f"{self.tokens_a_step:g} tokens a step (gen_length {self.gen_length} in {self.total_steps} steps): "
                "tokens committed together do not see each other, expect accuracy to suffer",
                stacklevel=3,
            )
        for token in forbid:
            if token not in ("mask", "eos") and (not isinstance(token, int) or token < 0):
                raise ValueError(f"forbid {token!r} is unknown; known: 'mask', 'eos', or a token id")

    def _check_needs(self, key: str, value: str, needed: str) -> None:
        if getattr(self, key) == value and getattr(self, needed) is None:
            raise ValueError(f"{key} {value!r} needs {needed}")

    @property
    def block(self) -> int:
        """Rows of a block; a sliding or whole window has one block, the canvas."""
        return self.block_length if self.window == "blockwise" and self.block_length else self.gen_length

    @property
    def blocks(self) -> int:
        return self.gen_length // self.block

    @property
    def total_steps(self) -> int:
        """Steps of the schedule; by default one token a step."""
        return self.gen_length if self.steps is None else self.steps

    @property
    def one_token_a_step(self) -> bool:
        """Whether this is the reference decoding that speedups are measured against."""
        return self.rule == "top_n" and self.total_steps == self.gen_length

    @property
    def tokens_a_step(self) -> float | None:
        """Tokens per step that the schedule fixes, None where the rule decides from the scores."""
        return self.gen_length / self.total_steps if self.rule in ("top_n", "timestep") else None

    def forbidden(self, spec: ModelSpec) -> tuple[int, ...]:
        """Ids never committed. Raises ValueError for one that is outside the vocabulary."""
        ids: list[int] = []
        for name in self.forbid:
            ids += [spec.mask_id] if name == "mask" else list(spec.stop_ids) if name == "eos" else [int(name)]
        for outside in (id for id in ids if id >= spec.vocab):
            raise ValueError(f"forbid {outside} is outside the model's vocabulary 0..{spec.vocab - 1}")
        return tuple(dict.fromkeys(ids))


@dataclass(frozen=True)
class Reading:
    """What the logits of the predicted rows say: the chosen token of each row, its probability and its rank's score, on
    the CPU; and, where the logits are, the logarithms of all probabilities.
    """

    tokens: Int[Tensor, " p"]
    probability: Float[Tensor, " p"]
    score: Float[Tensor, " p"]
    log_probability: Float[Tensor, "p v"]


class Decoder:
    """One sequence's decoder. Keeps where it is: the current block and the number of steps done in it."""

    def __init__(self, decoding: Decoding, spec: ModelSpec, seed: int = 0) -> None:
        self.decoding, self.spec, self.seed = decoding, spec, seed
        self.forbidden = decoding.forbidden(spec)
        self.block = -1
        self.block_step = 0

    def candidates(self, state: SequenceState) -> Int[Tensor, " p"]:
        """The masked rows that may be decided now, ascending; empty when the sequence is finished."""
        rows = state.masked_rows(state.prompt_length, state.length)
        if not rows.numel() or self._answered(state, int(rows[0])):
            return rows[:0]
        if self.decoding.window == "sliding":
            rows = rows[: self.decoding.window_length]
        block = (
            (int(rows[0]) - state.prompt_length) // self.decoding.block if self.decoding.window == "blockwise" else 0
        )
        if self.decoding.window == "blockwise":
            rows = rows[: int(torch.searchsorted(rows, state.prompt_length + (block + 1) * self.decoding.block))]
        if block != self.block:
            self.block, self.block_step = block, 0
        return rows

    def commit(
        self,
        logits: Float[Tensor, "p v"],
        predict: Int[Tensor, " p"],
        state: SequenceState,
        commit_all: bool = False,
        candidates: Int[Tensor, " n"] | None = None,
    ) -> Commit:
        """The tokens to write, from the logits of the predicted rows (raw, any float dtype, any device): `read`, then
        `decide`.
        """
        return self.decide(self.read(logits, predict, state), predict, state, commit_all, candidates)

    def decide(
        self,
        reading: Reading,
        predict: Int[Tensor, " p"],
        state: SequenceState,
        commit_all: bool = False,
        candidates: Int[Tensor, " n"] | None = None,
    ) -> Commit:
        """The tokens to write, from what was read of the predicted rows.

        `commit_all` sets the rule aside and commits every predicted row (`Plan.commit_all`). `candidates`, where given,
        are the only rows that may be committed; the others are read for their scores alone (`Plan.predict`).
        """
        up = torch.arange(len(predict))
        if candidates is not None:
            up = up[torch.isin(predict, candidates)]
        chosen = up if commit_all else up[self._select(reading.tokens[up], reading.score[up], predict[up], state)]
        self.block_step += 1
        return Commit(predict[chosen], reading.tokens[chosen], reading.probability[chosen], scores=reading.score)

    def read(self, logits: Float[Tensor, "p v"], predict: Int[Tensor, " p"], state: SequenceState) -> Reading:
        """Token, probability and score of each predicted row, in float32 or wider, brought to the CPU in one
        transfer.
        """
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        tokens = self._choose(wide, predict, state)
        log_probability = F.log_softmax(wide, dim=-1)
        del wide
        probability = log_probability.gather(1, tokens[:, None])[:, 0].exp()
        if self.decoding.confidence == "probability":
            score = probability
        elif self.decoding.confidence == "margin":
            best, second = log_probability.topk(2, dim=-1).values.exp().unbind(dim=-1)
            score = best - second
        else:
            score = -entropy_(log_probability.clone())
        read = torch.stack([tokens.to(score.dtype), probability, score]).cpu()
        return Reading(read[0].long(), read[1], read[2], log_probability)

    def _select(
        self, tokens: Int[Tensor, " p"], score: Float[Tensor, " p"], predict: Int[Tensor, " p"], state: SequenceState
    ) -> Int[Tensor, " c"]:
        """Which of the predicted rows to commit by the decoding's rule, as ascending indices into them."""
        if self.decoding.certainty_sigma is not None:
            density = certainty_density(~state.masked[state.prompt_length :], self.decoding.certainty_sigma)
            score = score * density[predict - state.prompt_length].to(score.dtype)
        behind = torch.zeros_like(predict, dtype=torch.bool)
        if self.decoding.eos_suppression:
            behind = torch.isin(tokens, torch.tensor(self.spec.stop_ids))
        order = rank(score, behind)
        count = self._count(score[order], behind[order], len(predict))
        return order[:count].sort().values

    def _choose(
        self, wide: Float[Tensor, "p v"], predict: Int[Tensor, " p"], state: SequenceState
    ) -> Int[Tensor, " p"]:
        """The token of each row: the largest logit (plus Gumbel noise at a temperature) among those not forbidden."""
        if self.decoding.temperature > 0:
            wide = wide / self.decoding.temperature + gumbel(wide, self.seed, state.step, predict)
        forbidden = list(self.forbidden)
        if not forbidden:
            return wide.max(dim=-1).indices  # several times as fast as argmax on a CPU
        kept = wide[:, forbidden]
        wide[:, forbidden] = -math.inf
        tokens = wide.max(dim=-1).indices
        wide[:, forbidden] = kept  # the caller's logits are raw again: score and entropy are theirs
        return tokens

    def _count(self, score: Float[Tensor, " p"], behind: Bool[Tensor, " p"], masks: int) -> int:
        """How many of the ranked rows to commit (`score` in rank order)."""
        decoding = self.decoding
        if decoding.rule == "threshold":
            assert decoding.threshold is not None
            passed = (score >= decoding.threshold) & ~behind
            return max(1, int(passed.sum()))
        if decoding.rule == "factor":
            assert decoding.factor is not None
            n = torch.arange(1, masks + 1)
            passed = ((n + 1) * (1 - score) < decoding.factor) & ~behind
            return max(1, int((n * passed).max()))
        steps = decoding.total_steps // decoding.blocks
        if decoding.rule == "timestep":
            return min(masks, timestep_count(masks, self.block_step, steps))
        schedule = split_evenly(decoding.block, steps)
        return min(masks, schedule[self.block_step]) if self.block_step < len(schedule) else masks

    def _answered(self, state: SequenceState, first_masked: int) -> bool:
        """`stop_early`: an EOS stands somewhere before the first mask."""
        if self.decoding.eos == "decode_all":
            return False
        return bool(
            torch.isin(state.tokens[state.prompt_length : first_masked], torch.tensor(self.spec.stop_ids)).any()
        )


def rank(score: Float[Tensor, " p"], behind: Bool[Tensor, " p"]) -> Int[Tensor, " p"]:
    """Indices by falling score, rows marked `behind` after all others, ties by lower row."""
    order = score.argsort(descending=True, stable=True)
    return order[behind[order].to(torch.uint8).argsort(stable=True)]


def split_evenly(masks: int, steps: int) -> list[int]:
    """LLaDA's schedule: masks over steps, the remainder first; steps without a token do not happen
    (`generate.py@b7e6c356`).
    """
    base, remainder = divmod(masks, steps)
    return [n for n in (base + (step < remainder) for step in range(steps)) if n]


def timestep_count(masks: int, step: int, steps: int) -> int:
    """Dream's sampler: int(masks·(1 - s/t)) in float32, everything in the last step (Dream `generation_utils.py`,
    `_sample`).
    """
    if step >= steps - 1:
        return masks
    times = torch.linspace(1, TIMESTEP_EPS, steps + 1)
    return int(torch.tensor(float(masks)) * (1 - times[step + 1] / times[step]))


def token_entropy(logits: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """-Σ p ln p of each row's softmax over the full vocabulary, in nats, in float32 or wider: O(v) a row."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return entropy_(F.log_softmax(wide, dim=-1))


def entropy_(log_probability: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """-Σ p ln p of each row of logarithms of probabilities, which are written over; in nats. One exponential each, no
    logarithm.
    """
    weighted = log_probability.exp().mul_(log_probability.clamp_min_(-1e4))  # 0 times -1e4 is 0, times -inf is NaN
    return -weighted.sum(dim=-1)


def gumbel(logits: Float[Tensor, "p v"], seed: int, step: int, rows: Int[Tensor, " p"]) -> Float[Tensor, "p v"]:
    """Standard Gumbel noise, a function of (seed, step, row) alone: a sequence does not depend on what is decoded
    beside it.
    """
    noise = torch.empty(logits.shape, dtype=torch.float64)
    for row, into in zip(rows.tolist(), noise, strict=True):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 1_000_003 + row)
        into.exponential_(generator=generator)
    return noise.log_().neg_().to(logits)


def certainty_density(known: Bool[Tensor, " g"], sigma: float) -> Float[Tensor, " g"]:
    """d2Cache's certainty density of each canvas row, float64 (arXiv 2509.23094; `vanilla.py@72feb60`).

    Known rows weighted by a Gaussian of deviation `sigma` over a canvas extended by its own length on both sides (left:
    known; right: known if the canvas's last row is), over the sum of the whole kernel, of which the extended canvas may
    hold only a part."""
    within, left, right = density_kernel(known.numel(), sigma)
    return within @ known.double() + left + right * known[-1]


@functools.lru_cache(maxsize=8)
def density_kernel(g: int, sigma: float) -> tuple[Float[Tensor, "g g"], Float[Tensor, " g"], Float[Tensor, " g"]]:
    """What each canvas row adds to each other's density, and what the extensions on the left and right add to it."""
    kernel = torch.exp(-0.5 * (torch.arange(-3 * g, 3 * g, dtype=torch.float64) / sigma) ** 2)
    # Row i sees the extended canvas from distance -(g + i) to 2g - 1 - i: windows of the kernel, one a row.
    windows = kernel[g + 1 : 5 * g].unfold(0, 3 * g, 1).flip(0) / kernel.sum()
    left, within, right = windows.split(g, dim=1)
    return within.contiguous(), left.sum(dim=1), right.sum(dim=1)


def multiples_around(number: int, of: int) -> list[int]:
    """The positive multiples of `of` just below and above a number."""
    below = number // of * of
    return [multiple for multiple in (below, below + of) if multiple]


def nearest_divisors(number: int, to: int) -> str:
    """The two divisors of a number closest to another, as text for an error."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return " or ".join(map(str, sorted(sorted(divisors, key=lambda n: abs(n - to))[:2])))
