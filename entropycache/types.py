"""The nouns of the engine. Everything here is data; nothing decides and nothing computes a forward pass.

Axis names used in every signature: t rows of a sequence (prompt + canvas), q rows of a compute set, p predicted rows, c
committed rows, v vocabulary, g canvas rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class ModelSpec:
    """The numbers that make a family's transformer: all that the engine ever knows about a model.

    `shift` is 1 where the token of row i is read from row i-1 (Dream) and 0 where it is read from row i (LLaDA).
    `stop_ids` are the tokens that end an answer (EOS, and EoT where the family has one); `eos_id` is the one used as
    fill.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    rope_theta: float
    norm_eps: float
    qkv_bias: bool
    tied: bool
    max_positions: int
    mask_id: int
    eos_id: int
    stop_ids: tuple[int, ...]
    bos_id: int | None
    shift: int

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden size {self.hidden}, {self.heads} heads, {self.kv_heads} key/value heads: "
                "heads must divide the hidden size and key/value heads must divide the heads"
            )
        for name in ("mask_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.vocab:
                raise ValueError(f"{name} {getattr(self, name)} is outside the vocabulary of {self.vocab}")

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def qkv_rows(self) -> int:
        """Rows of the fused query/key/value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True)
class Plan:
    """What a cache policy wants computed in one step.

    `compute` names each row once, in any order. `predict`, where given, is the sorted masked rows whose tokens are read
    in this step; of these only the decoder's candidates can be committed, the others are read for their scores (d2Cache
    commits only rows that were computed, and ranks the masked rows by what it last read of them). None reads the
    candidates as they are. With `commit_all` every candidate that is read is committed, whatever the commit rule
    (Fast-dLLM's first step of a block on Dream).
    """

    compute: Int[Tensor, " q"]
    refresh: bool
    predict: Int[Tensor, " p"] | None = None
    commit_all: bool = False


@dataclass(frozen=True)
class Commit:
    """The tokens written in one step, in ascending row order. `entropy` is in nats, or None where nobody asked for it.
    `scores` are the confidences of every row that was read, committed or not, as the decoding defines them.
    """

    rows: Int[Tensor, " c"]
    tokens: Int[Tensor, " c"]
    confidence: Float[Tensor, " c"]
    entropy: Float[Tensor, " c"] | None = None
    scores: Float[Tensor, " p"] | None = None

    def __len__(self) -> int:
        return self.rows.numel()


@dataclass(frozen=True)
class SequenceState:
    """One sequence: its prompt, its canvas, and which rows are still masked. Lives on the CPU; only `apply` makes a new
    one.
    """

    tokens: Int[Tensor, " t"]
    masked: Bool[Tensor, " t"]
    prompt_length: int
    all_rows: Int[Tensor, " t"]
    step: int = 0

    @classmethod
    def start(cls, prompt: Int[Tensor, " n"], gen_length: int, mask_id: int) -> SequenceState:
        """A prompt followed by `gen_length` masks. A mask token inside the prompt is context, never decoded."""
        canvas = torch.full((gen_length,), mask_id, dtype=torch.long)
        tokens = torch.cat([prompt.to("cpu", torch.long), canvas])
        masked = torch.zeros(tokens.numel(), dtype=torch.bool)
        masked[prompt.numel() :] = True
        return cls(tokens, masked, prompt.numel(), torch.arange(tokens.numel()))

    @property
    def length(self) -> int:
        return self.tokens.numel()

    @property
    def gen_length(self) -> int:
        return self.length - self.prompt_length

    def masked_rows(self, first: int, last: int) -> Int[Tensor, " p"]:
        """Masked rows in [first, last), ascending."""
        return self.masked[first:last].nonzero().squeeze(1) + first

    def apply(self, commit: Commit) -> SequenceState:
        """The sequence after a commit; a committed token is never taken back."""
        tokens, masked = self.tokens.clone(), self.masked.clone()
        tokens[commit.rows] = commit.tokens
        masked[commit.rows] = False
        return replace(self, tokens=tokens, masked=masked, step=self.step + 1)


@dataclass(frozen=True)
class StepRecord:
    """One forward pass as it was. Row indices are absolute (prompt rows included), seconds are by phase
    (`recorder.PHASES`).
    """

    refresh: bool
    computed: list[int]
    predicted: list[int]
    committed: list[int]
    tokens: list[int]
    confidence: list[float]
    entropy: float | None
    rows_written: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Generation:
    """A decoded canvas with what it cost.

    `rows_computed` is the number of rows whose keys and values were written, averaged over layers, summed over steps;
    `rows_total` is steps x rows, what full recompute would have written; `flops` is the analytic cost (`flops.py`);
    `seconds` is generation time by phase, and `steps` is empty unless `trace=True`. `batch_size` is how many sequences
    could be packed when it finished: less than was asked for where memory ran out.
    """

    tokens: Int[Tensor, " g"]
    prompt_length: int
    nfe: int
    refreshes: int
    rows_computed: float
    rows_total: int
    flops: float
    seconds: dict[str, float]
    peak_memory_bytes: int | None
    steps: list[StepRecord] = field(default_factory=list)
    batch_size: int = 1

    @property
    def total_seconds(self) -> float:
        """Generation time: the sum of its phases."""
        return sum(self.seconds.values())
