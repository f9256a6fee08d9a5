"""Train a small checkpoint on the mini benchmarks, or take up a training that was stopped.

python scripts/train_tiny.py train=tiny_llada              # to the end of the schedule
python scripts/train_tiny.py train=tiny_dream minutes=30   # a piece of it
python scripts/train_tiny.py continue_from=entropycache/assets/tiny_llada  # go on from committed weights and record
python scripts/train_tiny.py check=200                     # the first 200 losses again, compared with the record's
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer
from tqdm import tqdm

from entropycache.models.checkpoint import save_checkpoint
from entropycache.models.transformer import Transformer
from entropycache.types import ModelSpec
from evaluation.training import tokenizers
from evaluation.training.data import Batches, Stage
from evaluation.training.evaluate import accuracy
from evaluation.training.trainer import Schedule, Trainer, initialise, write_record

ROOT = Path(__file__).resolve().parent.parent


def spec_of(cfg: DictConfig, tokenizer: Tokenizer) -> ModelSpec:
    """The model's numbers from the configuration, its special tokens from the tokenizer."""
    specials = tokenizers.SPECIALS[cfg.train.family]
    ids = tokenizer.get_vocab()
    return ModelSpec(
        family=cfg.train.family,
        layers=cfg.model.layers,
        hidden=cfg.model.hidden,
        heads=cfg.model.heads,
        kv_heads=cfg.train.kv_heads,
        intermediate=cfg.model.intermediate,
        vocab=cfg.model.vocab,
        rope_theta=cfg.train.rope_theta,
        norm_eps=cfg.train.norm_eps,
        qkv_bias=cfg.train.qkv_bias,
        tied=False,
        max_positions=cfg.model.max_positions,
        mask_id=ids[specials.mask],
        eos_id=ids[specials.eos],
        stop_ids=(ids[specials.eos],),
        bos_id=ids[specials.bos],
        shift=int(cfg.train.family == "dream"),
    )


CHECKED, TOLERANCE = 200, 1e-3


def compare(losses: list[float], output: Path) -> None:
    """Print how far the losses of the first steps are from the committed record's; an error where it is too far."""
    recorded = json.loads((output / "training_record.json").read_text())["first_losses_float64"][: len(losses)]
    furthest = max(abs(a - b) for a, b in zip(losses, recorded, strict=False))
    line = f"first {len(recorded)} losses: at most {furthest:.1e} from the record in {output}"
    if furthest > TOLERANCE:
        raise SystemExit(f"{line}, more than {TOLERANCE:.0e}")
    print(line)


def trainer_of(cfg: DictConfig, dtype: torch.dtype = torch.float32) -> Trainer:
    """Model, data and schedule at step 0."""
    data: dict[str, Any] = OmegaConf.to_container(cfg.data, resolve=True)  # type: ignore[assignment]
    tokenizer = tokenizers.load(cfg.train.family, ROOT / cfg.output)
    if tokenizer is None:
        tokenizer = tokenizers.train(cfg.train.family, cfg.model.vocab)
        tokenizers.save(cfg.train.family, tokenizer, ROOT / cfg.output)
    common = {"benchmarks": data["benchmarks"], "tokens": data["tokens"]}
    stages = [Stage(**(common | stage)) for stage in data["stages"]]
    batches = Batches(tokenizer, cfg.train.family, stages, data["mask_all"], data["mask_shots"], cfg.seed)
    model = Transformer(spec_of(cfg, tokenizer))
    initialise(model, cfg.seed)
    model.to(cfg.device, dtype)
    optimizer, schedule = cfg.optimizer, Schedule(dict(cfg.optimizer.lr))
    return Trainer(model, batches, schedule, optimizer.weight_decay, optimizer.clip, ROOT / cfg.work, cfg.threads)


def first_losses(cfg: DictConfig, count: int) -> list[float]:
    """Losses of the first steps in float64: in float32 what processors round differently is 0.02 after 200 steps."""
    trainer = trainer_of(cfg, torch.float64)
    return [round(trainer.train_step(), 6) for _ in tqdm(range(count), desc="in float64", unit="step", disable=None)]


@hydra.main(version_base="1.3", config_path="../conf", config_name="train_tiny")
def main(cfg: DictConfig) -> None:
    torch.set_num_threads(1)  # the workers are threads of their own
    output = ROOT / cfg.output
    if cfg.check:
        compare(first_losses(cfg, cfg.check), output)
        return
    trainer = trainer_of(cfg)
    parts = OmegaConf.create({key: cfg[key] for key in ("seed", "train", "model", "optimizer", "data")})
    trainer.record.settings = json.loads(json.dumps(OmegaConf.to_container(parts, resolve=True)))
    resumed = trainer.resume()
    if not resumed and cfg.continue_from:
        trainer.continue_from(ROOT / cfg.continue_from)
        resumed = True
    if not resumed:
        trainer.record.first_losses_float64 = first_losses(cfg, min(CHECKED, trainer.schedule.steps))
    parameters = sum(p.numel() for p in trainer.model.parameters())
    where = f"{'resumed at' if resumed else 'from'} step {trainer.step}"
    print(f"{cfg.train.name}: {parameters:,} parameters, {where}", flush=True)

    def after_save(trainer: Trainer, evaluate: bool) -> None:
        if evaluate:
            figures = accuracy(trainer.model, trainer.batches, cfg.evaluate_items)
            trainer.record.accuracy.append({"step": trainer.step, "benchmarks": figures})
            print("  ".join(f"{name} {100 * r['mean']:.0f} %" for name, r in figures.items()), flush=True)
        save_checkpoint(trainer.model, output)
        write_record(trainer.record, output / "training_record.json")

    signal.signal(signal.SIGTERM, lambda *_: trainer.stop())
    trainer.run(
        minutes=cfg.minutes,
        save_every=cfg.save_every,
        evaluate_every=cfg.evaluate_every,
        after_save=after_save,
        show=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    main()
