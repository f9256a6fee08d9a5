"""The training loop: masked diffusion over `Batches`, resumable, with a record of what was done."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from entropycache.models.attention import in_pairs
from entropycache.models.checkpoint import load_model
from entropycache.models.transformer import Transformer
from evaluation.training.data import Batch, Batches


class Schedule:
    """Learning rate by step, counted from 0: straight lines between (step, rate) knots, and done at the last one."""

    def __init__(self, knots: Mapping[int, float]) -> None:
        self.knots = sorted(knots.items())

    @property
    def steps(self) -> int:
        return self.knots[-1][0]

    def rate(self, step: int) -> float:
        """Learning rate of one step; raises ValueError for a step outside the knots."""
        for (start, low), (end, high) in pairwise(self.knots):
            if start <= step <= end:
                return low + (high - low) * (step - start) / (end - start)
        raise ValueError(f"no learning rate for step {step}: knots from {self.knots[0][0]} to {self.knots[-1][0]}")


EMBEDDING_STD = {"embed.weight": 1.0, "head.weight": 0.02}


@dataclass
class Record:
    """What `training_record.json` holds besides the settings: grows with every piece of a training."""

    settings: dict[str, Any] = field(default_factory=dict)
    pieces: list[dict[str, Any]] = field(default_factory=list)
    first_losses: list[float] = field(default_factory=list)
    first_losses_float64: list[float] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    accuracy: list[dict[str, Any]] = field(default_factory=list)
    hours: float = 0.0
    tokens: int = 0


def initialise(model: Transformer, seed: int) -> None:
    """Normal weights of deviation 1 / sqrt(inputs), the projections onto the residual stream smaller by sqrt(2 layers).

    Embeddings have deviation 1, the head 0.02. At this width the 0.02 that is usual for all of them is three times too
    little: the plateau before a small model copies from its prompt was several times as long.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                std = EMBEDDING_STD.get(name, 1 / math.sqrt(parameter.shape[1]))
                if name.endswith(("out.weight", "down.weight")):
                    std /= math.sqrt(2 * model.spec.layers)
                drawn = torch.randn(parameter.shape, generator=generator) * std
                parameter.copy_(drawn)
                if name.endswith("qkv.weight"):  # drawn in the order of the checkpoints, whatever ours is
                    spec = model.spec
                    turned = (spec.heads + spec.kv_heads) * spec.head_dim
                    pairs = in_pairs(parameter[:turned], spec.head_dim)
                    pairs.copy_(drawn[:turned].view(pairs.shape))
            elif name.endswith("bias"):
                parameter.zero_()


def loss_of(model: Transformer, batch: Batch) -> Float[Tensor, ""]:
    """Summed cross-entropy over the masked rows; a shifted model's row i is read from row i-1."""
    ids, masked = batch.ids.to(model.device), batch.masked.to(model.device)
    x = model.hidden(ids.masked_fill(masked, model.spec.mask_id))
    rows, columns = masked.nonzero(as_tuple=True)
    logits = model.read_out(x[rows, model.sources(columns)])
    return F.cross_entropy(logits, ids[rows, columns], reduction="sum")


class Workers:
    """Gradients of a batch, its rows shared out over threads that run one operation each at a time.

    On a CPU that is shared, this loses far less than operations that are split over threads and wait for the slowest.
    """

    def __init__(self, model: Transformer, count: int) -> None:
        self.model, self.count = model, count
        self.parameters = list(model.parameters())
        self.pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def gradients(self, batch: Batch) -> float:
        """Leave the gradients of the mean loss in the parameters; that loss."""
        targets = int(batch.masked.sum())
        parts = zip(batch.ids.chunk(self.count), batch.masked.chunk(self.count), strict=True)
        results = list(self.pool.map(lambda part: self._part(Batch(*part), targets), parts))
        for parameter, *gradients in zip(self.parameters, *(gradients for _, gradients in results), strict=True):
            parameter.grad = sum(gradients[1:], gradients[0])
        return sum(loss for loss, _ in results)

    def _part(self, part: Batch, targets: int) -> tuple[float, tuple[Tensor, ...]]:
        loss = loss_of(self.model, part) / targets
        return loss.item(), torch.autograd.grad(loss, self.parameters)


def optimizer_of(model: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """AdamW; norms and biases are not decayed."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=True)


@dataclass
class Trainer:
    """Model, optimiser, data and where it stands. `work` holds the resumable state, apart from the checkpoint."""

    model: Transformer
    batches: Batches
    schedule: Schedule
    weight_decay: float
    clip: float
    work: Path
    threads: int = 1
    record: Record = field(default_factory=Record)
    step: int = 0
    stopping: bool = False

    def __post_init__(self) -> None:
        self.model.requires_grad_(True)
        self.optimizer = optimizer_of(self.model, self.weight_decay)
        self.workers = Workers(self.model, self.threads)

    @property
    def state_file(self) -> Path:
        return self.work / "state.pt"

    def save(self) -> None:
        """Write the state by rename, so that a kill leaves the last good one."""
        self.work.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "record": asdict(self.record),
        }
        torch.save(state, self.state_file.with_suffix(".tmp"))
        self.state_file.with_suffix(".tmp").replace(self.state_file)

    def resume(self) -> bool:
        """Take up the state left in `work`; False where there is none."""
        if not self.state_file.is_file():
            return False
        state = torch.load(self.state_file, weights_only=True, map_location=self.model.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, settings = state["step"], self.record.settings
        self.record = Record(**state["record"])
        self.record.settings = settings
        return True

    def continue_from(self, checkpoint: Path) -> None:
        """Take up the training whose weights and record lie in a checkpoint folder; the optimiser starts afresh."""
        self.model.load_state_dict(load_model(checkpoint).state_dict())
        settings = self.record.settings
        self.record = Record(**json.loads((checkpoint / "training_record.json").read_text()))
        self.record.settings = settings
        self.step = self.record.pieces[-1]["last_step"]

    def stop(self) -> None:
        """End `run` after the step that is under way, its state saved."""
        self.stopping = True

    def train_step(self) -> float:
        """One update; its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(self.step)
        batch = self.batches.batch(self.step)
        loss = self.workers.gradients(batch)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.step += 1
        self.record.tokens += batch.ids.numel()
        return loss

    def run(
        self,
        minutes: float,
        save_every: float,
        evaluate_every: float,
        after_save: Callable[[Trainer, bool], None],
        show: Callable[[str], None],
    ) -> None:
        """Train until the schedule's last step or for `minutes`, whichever comes first.

        Every `save_every` minutes and at the end the state is saved and `after_save(trainer, evaluate)` called, where
        `evaluate` says that `evaluate_every` minutes have passed since it was last true. Progress goes to `show`.
        """
        last_step = self.schedule.steps
        first_step, started = self.step, time.monotonic()
        saved = evaluated = mark = started
        recent: list[float] = []
        while self.step < last_step and not self.stopping and time.monotonic() - started < 60 * minutes:
            loss = self.train_step()
            recent.append(loss)
            if self.step <= 200:
                self.record.first_losses.append(round(loss, 6))
            if self.step % 50 == 0:
                mean, now = sum(recent) / len(recent), time.monotonic()
                self.record.losses.append((self.step, round(mean, 5)))
                left = (last_step - self.step) * (now - mark) / len(recent)
                show(
                    f"step {self.step}/{last_step}  loss {mean:.4f}  lr {self.schedule.rate(self.step):.2e}  "
                    f"{len(recent) / (now - mark):.2f} steps/s  {left / 60:.0f} min left"
                )
                recent, mark = [], now
            now = time.monotonic()
            if now - saved > 60 * save_every:
                self.record.hours += (now - saved) / 3600
                evaluate = now - evaluated > 60 * evaluate_every
                self.save()
                after_save(self, evaluate)
                saved = mark = time.monotonic()
                evaluated = saved if evaluate else evaluated
                recent = []
        self.record.hours += (time.monotonic() - saved) / 3600
        self.record.pieces.append({"first_step": first_step, "last_step": self.step})
        self.save()
        after_save(self, not self.stopping)


def write_record(record: Record, path: Path) -> None:
    """`training_record.json` beside the weights."""
    path.write_text(json.dumps(asdict(record), indent=1) + "\n")
