"""Held-out accuracy while training: published shots, a block-wise threshold decode, the final answer compared as text.

A progress figure, quick and without running any code: functions count only if written exactly as in the gold answer.
The figures of a finished checkpoint come from the runner and the scorers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from entropycache.models.transformer import Transformer
from evaluation.benchmarks import mini
from evaluation.benchmarks.mini.bbh_cot import SUBTASKS
from evaluation.training.data import Batches
from evaluation.training.tokenizers import chat

FINAL_MARK = {
    "mini_gsm8k": "#### ",
    "mini_gsm8k_cot": "The answer is ",
    "mini_math500": "\\boxed",
    "mini_bbh_cot": "the answer is ",
}


@torch.no_grad()
def decode(
    model: Transformer, prompt: list[int], gen_length: int, block: int = 32, threshold: float = 0.9
) -> Int[Tensor, " g"]:
    """Block-wise threshold decoding by full passes; at least one token a pass."""
    spec = model.spec
    start = len(prompt)
    ids = torch.tensor(prompt + [spec.mask_id] * gen_length, device=model.device)
    for first in range(start, start + gen_length, block):
        while len(rows := (ids[first : first + block] == spec.mask_id).nonzero().squeeze(1) + first):
            logits = model.forward_full(ids)[model.sources(rows)]
            logits[:, spec.mask_id] = -torch.inf
            confidence, tokens = logits.softmax(-1).max(-1)
            chosen = confidence >= min(threshold, confidence.max().item())
            ids[rows[chosen]] = tokens[chosen]
        if spec.eos_id in ids[start : first + block]:
            break
    return ids[start:]


def final(name: str, text: str) -> str:
    """What follows the last mark of a final answer; the whole text for code."""
    mark = FINAL_MARK.get(name, "")
    return text.rpartition(mark)[2].strip(" .\n$") if mark else text.rstrip()


def accuracy(model: Transformer, batches: Batches, count: int) -> dict[str, dict[str, Any]]:
    """Mean, standard error and n of every mini benchmark, on the first test items with seed 0."""
    results = {}
    for name in mini.GENERATORS:
        docs = mini.items(name, "test", count, seed=0)
        right = 0
        for doc in docs:
            prompt = batches.encode(chat(batches.family, mini.prompt(name, doc, shots_for(name, doc))))
            canvas = decode(model, prompt, mini.CANVAS[name]).tolist()
            length = canvas.index(batches.eos) if batches.eos in canvas else len(canvas)
            right += final(name, batches.tokenizer.decode(canvas[:length])) == final(name, mini.answer(name, doc))
        mean = right / count
        results[name] = {"mean": mean, "se": round(math.sqrt(mean * (1 - mean) / count), 4), "n": count}
    return results


def shots_for(name: str, doc: dict) -> list[dict]:
    """The published number of few-shot items; of the item's own subtask where there are subtasks."""
    if name != "mini_bbh_cot":
        return mini.items(name, "fewshot", mini.SHOTS[name]) if mini.SHOTS[name] else []
    pool = mini.items(name, "fewshot", 20 * len(SUBTASKS))
    return [shot for shot in pool if shot["subtask"] == doc["subtask"]][: mini.SHOTS[name]]
