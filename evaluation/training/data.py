"""Batches for masked diffusion: what step s sees is a pure function of (seed, s).

A sequence is the chat prompt with as many solved shots as fit, then the canvas: the answer and end-of-text tokens up to
the batch's length, which are targets like any other (LLaDA's GUIDELINES.md: EOS follows an answer, and pads it). So a
batch has no padding and no attention mask. Noise comes in two complementary copies of the same sequence:

- the canvas alone is masked, at a ratio drawn uniformly (the instruction form);
- the shots' answers are masked as well, each at its own ratio (the pre-training form: many more targets a pass);
- in a stage's share `numbers` of the sequences, a digit is hidden wherever its number stands in an answer, or nowhere.
  A result stands two or three times in a worked answer: where tokens are hidden one by one, nearly always a copy of it
  is left, and a small model learns to look results up but not to compute them;
- in a stage's share `ends`, each part is hidden from a place drawn uniformly to its end, as decoding leaves it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Tokenizer
from torch import Tensor

from evaluation.benchmarks import mini
from evaluation.benchmarks.mini import exercises
from evaluation.benchmarks.mini.bbh_cot import SUBTASKS
from evaluation.training.tokenizers import chat

DRAWS = 100  # of some items each, before a length is given up


@dataclass(frozen=True)
class Stage:
    """Until which step; how often each length (tokens of a whole sequence) is drawn; the share of each benchmark.

    `tokens` is the size of a batch, both copies counted. `spare` is the share of sequences that take fewer shots than
    would fit, and so have a long end-of-text fill. `numbers` and `ends` are the shares of two kinds of noise.
    """

    until: int
    lengths: Mapping[int, float]
    benchmarks: Mapping[str, float]
    tokens: int
    spare: float = 0.0
    numbers: float = 0.0
    ends: float = 0.0


@dataclass(frozen=True)
class Batch:
    """`ids` with nothing masked, `masked` rows are the targets, [b, t]; each sequence stands in it twice."""

    ids: Int[Tensor, "b t"]
    masked: Bool[Tensor, "b t"]


@dataclass(frozen=True)
class Sequence:
    """Token ids up to the canvas' EOS fill, the spans of the shots' answers, and where the canvas starts."""

    ids: list[int]
    shots: list[tuple[int, int]]
    canvas: int


class Batches:
    """Random access to the training data of one family by step."""

    def __init__(
        self, tokenizer: Tokenizer, family: str, stages: list[Stage], mask_all: float, mask_shots: float, seed: int
    ) -> None:
        self.tokenizer, self.family, self.stages, self.seed = tokenizer, family, stages, seed
        self.mask_all, self.mask_shots = mask_all, mask_shots
        self.eos: int = tokenizer.get_vocab()["<|endoftext|>"]  # its name in both families
        self.digits = {self.tokenizer.get_vocab()[digit] for digit in "0123456789"}
        self.overhead = len(self.encode(chat(family, "")))
        self.prefix = len(self.encode(chat(family, "\0").partition("\0")[0]))

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def batch(self, step: int) -> Batch:
        """The batch of one step: about its stage's `tokens`, of one length."""
        stage = next(stage for stage in self.stages if step < stage.until)
        rng = random.Random(f"{self.seed}/{step}")
        length = rng.choices(list(stage.lengths), list(stage.lengths.values()))[0]
        count = max(1, stage.tokens // (2 * length))
        ids = torch.full((count, length), self.eos)
        masked = torch.zeros(2, count, length, dtype=torch.bool)
        noise = torch.rand(count, length, generator=torch.Generator().manual_seed(rng.getrandbits(62)))
        for row in range(count):
            name = rng.choices(list(stage.benchmarks), list(stage.benchmarks.values()))[0]
            sequence = self.sequence(name, length, rng, stage.spare)
            ids[row, : len(sequence.ids)] = torch.tensor(sequence.ids)
            spans = [(sequence.canvas, length)]
            if rng.random() < self.mask_all:
                spans = [(self.prefix, length)]
            elif rng.random() < self.mask_shots:
                spans += sequence.shots
            kind = rng.random() if stage.numbers + stage.ends else 1.0
            for start, end in spans:
                drawn = noise[row, start:end]
                if kind < stage.numbers:
                    drawn = self.alike(drawn, ids[row, start:end].tolist())
                elif kind < stage.numbers + stage.ends:
                    drawn = torch.linspace(1, 0, end - start)
                hidden = drawn < rng.random()
                masked[0, row, start:end], masked[1, row, start:end] = hidden, ~hidden
        return Batch(ids.repeat(2, 1), masked.flatten(0, 1))

    def alike(self, noise: Float[Tensor, " n"], ids: list[int]) -> Float[Tensor, " n"]:
        """The noise of n tokens where each digit has that of the first place where its whole number stands."""
        noise, at = noise.clone(), 0
        first: dict[tuple[int, ...], Tensor] = {}
        for digits, run in groupby(ids, self.digits.__contains__):
            size = len(number := tuple(run))
            if digits:
                noise[at : at + size] = first.setdefault(number, noise[at : at + size].clone())
            at += size
        return noise

    def sequence(self, name: str, length: int, rng: random.Random, spare: float = 0.0) -> Sequence:
        """One sequence of at most `length` tokens with as many shots as fit; items too long for it are passed over.

        Raises ValueError where none of a benchmark's items fits.
        """
        for _ in range(DRAWS):
            fitting: list[dict] = []
            room = length - self.overhead - 1
            for doc in self._docs(name, 2 + length // (8 if name in exercises.EXERCISES else 24), rng):
                size = len(self.encode(f"{mini.prompt(name, doc)} {mini.answer(name, doc)}\n\n"))
                if size <= room:
                    fitting.append(doc)
                    room -= size
                elif fitting:
                    break
            if not fitting:
                continue
            rng.shuffle(fitting)
            if spare and rng.random() < spare:
                fitting = fitting[rng.randrange(len(fitting)) :]
            made = self.render(name, fitting[-1], fitting[:-1])
            if len(made.ids) <= length:  # tokens of the whole may be a few more than of its parts
                return made
        raise ValueError(f"no item of {name} fits into {length} tokens: data.stages must give it a longer length")

    def _docs(self, name: str, count: int, rng: random.Random) -> list[dict]:
        """Training items of one benchmark; of one subtask where it has them, as in its prompts."""
        seed = rng.getrandbits(40)
        if name in exercises.EXERCISES:
            return exercises.items(name, count, seed)
        if name != "mini_bbh_cot":
            return mini.items(name, "train", count, seed)
        subtask = rng.choice(list(SUBTASKS))
        return [doc for doc in mini.items(name, "train", 5 * count, seed) if doc["subtask"] == subtask]

    def render(self, name: str, doc: Mapping, solved: list[dict]) -> Sequence:
        """Tokens of a prompt with its solved shots and of the answer, as at inference: the answer is encoded apart."""
        text = mini.prompt(name, doc, solved)
        rendered = chat(self.family, text)
        coded = self.tokenizer.encode(rendered, add_special_tokens=False)
        spans, at = [], rendered.index(text)
        for shot in solved:
            reply = mini.answer(name, shot)
            start = rendered.index(reply, at + len(mini.question(name, shot)))
            at = start + len(reply)
            spans.append((start, at))
        rows = [[i for i, (a, b) in enumerate(coded.offsets) if a < end and b > start] for start, end in spans]
        return Sequence(
            coded.ids + self.encode(mini.answer(name, doc)), [(r[0], r[-1] + 1) for r in rows], len(coded.ids)
        )
