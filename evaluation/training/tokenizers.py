"""The tokenizers of the small checkpoints: byte-level BPE trained on the mini benchmarks, in each family's own files.

Any text encodes (all 256 bytes are in the vocabulary); every digit is a token of its own, as Qwen2's splitting has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from entropycache.models.checkpoint import FAMILIES
from evaluation.benchmarks import mini

# transformers 5 models/qwen2/tokenization_qwen2.py: Dream's files are read through it, so ours must split as it does.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Specials:
    """Special tokens of one family by their use; `others` are the template's own."""

    eos: str
    mask: str
    bos: str
    others: tuple[str, ...]

    @property
    def all(self) -> list[str]:
        return [self.eos, self.bos, *self.others, self.mask]


SPECIALS = {
    "llada": Specials(
        "<|endoftext|>",
        "<|mdm_mask|>",
        "<|startoftext|>",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    "dream": Specials("<|endoftext|>", "<|mask|>", "<|beginoftext|>", ("<|im_start|>", "<|im_end|>")),
}


def chat(family: str, content: str) -> str:
    """One user turn in the family's chat template, ready for the answer."""
    template = next(known.chat_template for known in FAMILIES.values() if known.name == family)
    return template.replace("{content}", content)


def corpus(count: int = 3000) -> Iterator[str]:
    """Training text: every mini benchmark's train items with a solved shot before them, and the templates' words."""
    yield from ["You are a helpful assistant.", "system\n", "user\n", "assistant\n", "\n\n"] * 500
    for name in mini.GENERATORS:
        docs = mini.items(name, "train", count, seed=-1)
        for doc, shot in zip(docs, reversed(docs), strict=True):
            yield mini.prompt(name, doc, [shot]) + mini.answer(name, doc)


def assemble(family: str, model: models.BPE) -> Tokenizer:
    """A byte-pair model with the splitting, decoding and special tokens around it."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS[family].all])
    return tokenizer


def train(family: str, vocab: int) -> Tokenizer:
    """A tokenizer of `vocab` tokens in all, the family's special tokens last."""
    untrained = assemble(family, models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIALS[family].all),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain = Tokenizer(models.BPE())
    plain.normalizer, plain.pre_tokenizer = untrained.normalizer, untrained.pre_tokenizer
    plain.train_from_iterator(corpus(), trainer)
    return assemble(family, plain.model)


def load(family: str, directory: Path) -> Tokenizer | None:
    """The tokenizer whose files `save` left in a folder; None where there are none."""
    if family == "llada":
        path = directory / "tokenizer.json"
        return Tokenizer.from_file(str(path)) if path.is_file() else None
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    return assemble(family, models.BPE.from_file(str(vocab), str(merges))) if vocab.is_file() else None


def save(family: str, tokenizer: Tokenizer, directory: Path) -> None:
    """The family's files: LLaDA `tokenizer.json`, Dream `vocab.json` and `merges.txt`; both `tokenizer_config.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    specials = SPECIALS[family]
    template = chat(family, "{{ messages[0]['content'] }}").replace("\n", "\\n")
    config = {
        "add_bos_token": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(name)): {"content": name, "special": True, "normalized": False, "lstrip": False,
                                               "rstrip": False, "single_word": False}
            for name in specials.all
        },
        "bos_token": specials.bos,
        "chat_template": template.replace("\\n", "\n"),
        "clean_up_tokenization_spaces": False,
        "eos_token": specials.eos,
        "mask_token": specials.mask,
        "model_max_length": 4096,
        "pad_token": specials.eos,
        "tokenizer_class": "PreTrainedTokenizerFast" if family == "llada" else "Qwen2Tokenizer",
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    if family == "llada":
        tokenizer.save(str(directory / "tokenizer.json"))
        return
    tokenizer.model.save(str(directory))
    added = {name: tokenizer.token_to_id(name) for name in specials.all}
    (directory / "added_tokens.json").write_text(json.dumps(added, indent=1) + "\n")
