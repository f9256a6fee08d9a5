"""Tokenizers of both families, from their files alone: no code from a checkpoint is ever run.

LLaDA ships a fast tokenizer file; Dream ships Qwen2's `vocab.json` and `merges.txt` behind a Python class of its own,
which is not needed: Qwen2's tokenizer over the same two files and the same added tokens gives the same ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer


def special_tokens(directory: Path) -> dict[str, int]:
    """Special tokens by name, from whichever of the tokenizer's files is there; empty where the checkpoint has no
    tokenizer.
    """
    found: dict[str, int] = {}
    for token in _json(directory / "tokenizer.json").get("added_tokens", []):
        found[token["content"]] = token["id"]
    for name, index in _json(directory / "added_tokens.json").items():
        found[name] = index
    for index, token in _json(directory / "tokenizer_config.json").get("added_tokens_decoder", {}).items():
        found[token["content"]] = int(index)
    return found


class Tokenizer:
    """Text to ids and back. Special tokens written out in the text are recognised; none is ever added or guessed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
            backend: PreTrainedTokenizerFast = Qwen2Tokenizer(
                vocab=str(directory / "vocab.json"), merges=str(directory / "merges.txt")
            )
            by_id = sorted(special_tokens(directory).items(), key=lambda item: item[1])
            backend.add_tokens([AddedToken(name, special=True, normalized=False) for name, _ in by_id])
        elif (directory / "tokenizer.json").is_file():
            backend = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
        else:
            raise ValueError(f"{directory}: no tokenizer here; expected tokenizer.json, or vocab.json with merges.txt")
        self._backend = backend
        self._check_specials()

    def encode(self, text: str) -> list[int]:
        """Ids of the text; nothing is put before or behind it."""
        return self._backend.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens left out, white space as it is."""
        text = self._backend.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    @cached_property
    def specials(self) -> dict[str, int]:
        """Special tokens by name."""
        return special_tokens(self.directory)

    def __len__(self) -> int:
        return len(self._backend)

    def _check_specials(self) -> None:
        for name, index in self.specials.items():
            got = self._backend.convert_tokens_to_ids(name)
            if got != index:
                raise ValueError(
                    f"{self.directory}: special token {name} is {got} in the vocabulary but {index} in the added tokens"
                )


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
