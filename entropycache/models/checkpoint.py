"""Checkpoints on disk: find one, read its config, stream its tensors into a model; and write one back in the family's
own format.
"""

from __future__ import annotations

import json
from collections import defaultdict
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from entropycache.models import dream, llada
from entropycache.models.attention import in_pairs
from entropycache.models.family import Family, Slot
from entropycache.models.tokenizer import special_tokens
from entropycache.models.transformer import Transformer

FAMILIES: dict[str, Family] = {family.name: family for family in (llada.FAMILY, dream.FAMILY)}
MODEL_TYPES = {family.model_type: family for family in FAMILIES.values()}
PIECE_BYTES = 16 * 2**20  # read at a time
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "merges.txt")  # data only: no code is fetched
SUPPORTED = {"torch": ("2.5", "3"), "transformers": ("5", "6")}  # first supported version, first unsupported one


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded. One line: what, where, what would do."""


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
) -> Transformer:
    """The transformer of a LLaDA or Dream checkpoint: a folder, a hub id, or the name of a checkpoint that this package
    ships.

    The family is read from `config.json`; a model type other than llada or Dream is refused, and no code from the
    checkpoint is run. Tensors are read one by one into a model made on the meta device, so that the peak is about the
    weights' size in `dtype`.

    Raises CheckpointError for an unknown model type, an unsupported setting, a missing or truncated file, and for
    missing, stray or mis-shaped tensors, all of them named.
    """
    check_versions()
    directory = resolve(path, revision)
    family, config = read_config(directory)
    spec = family.spec(config, special_tokens(directory))
    with torch.device("meta"):
        model = Transformer(spec)
    files = tensor_files(directory)
    slots = {slot.disk: slot for slot in family.slots(spec)}
    check_tensors(directory, files, slots, model)
    model.to(dtype).requires_grad_(False).to_empty(device=device)
    if spec.tied:
        model.head.weight = model.embed.weight
    parameters = dict(model.named_parameters())
    for name, slot in slots.items():
        read_into(destination(parameters[slot.parameter], slot), files[name], name)
    return model.eval()


def read_into(target: Tensor, path: Path, name: str) -> None:
    """Copy a tensor of a safetensors file into `target` (`destination`), some rows or heads at a time.

    The file is reopened for each piece: a mapping keeps every page that was read resident for as long as it is open.
    """
    some = max(1, PIECE_BYTES // (target[0].numel() * target.element_size()))
    for number, piece in enumerate(target.split(some)):
        with safe_open(path, framework="pt") as file:
            source = file.get_slice(name)
            each = source.get_shape()[0] // target.shape[0]  # rows on disk of one entry of the target
            first = number * some * each
            piece.copy_(source[first : first + len(piece) * each].view(piece.shape))


def save_checkpoint(model: Transformer, directory: str | Path) -> None:
    """Write `config.json` and `model.safetensors` in the family's own naming; the folder is made if need be."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    family = FAMILIES[model.spec.family]
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tensors = {
        slot.disk: destination(parameters[slot.parameter], slot)
        .cpu()
        .clone()
        .reshape(shape_on_disk(parameters[slot.parameter], slot))
        for slot in family.slots(model.spec)
    }
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})
    config = family.config(model.spec) | {"torch_dtype": str(model.dtype).removeprefix("torch.")}
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def resolve(path: str | Path, revision: str | None = None) -> Path:
    """The local folder of a checkpoint: a folder as it is, a shipped checkpoint by its name, else a hub id
    (downloaded).
    """
    if (folder := local_folder(path)) is not None:
        return folder
    if Path(path).expanduser().is_absolute() or str(path).count("/") != 1 or str(path).startswith("."):
        raise CheckpointError(f"{path}: no such folder, and neither a shipped checkpoint nor a hub id (owner/name)")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = [
        "*.safetensors",
        "*.safetensors.index.json",
        "config.json",
        "tokenizer*.json",
        "vocab.json",
        "merges.txt",
        "added_tokens.json",
    ]
    try:
        return Path(snapshot_download(str(path), revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{path}: cannot be fetched from the hub ({reason}); give a local folder, or check the id and network"
        ) from None


def local_folder(path: str | Path) -> Path | None:
    """The folder of a checkpoint that is on this machine: the folder itself, or a shipped checkpoint's by its name."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    shipped = Path(str(resources.files("entropycache") / "assets" / str(path)))
    return shipped if (shipped / "config.json").is_file() else None


def read_config(directory: Path) -> tuple[Family, dict[str, Any]]:
    """The family and `config.json` of a checkpoint folder, refused where the shared transformer would compute something
    else.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; a checkpoint folder holds config.json and safetensors files") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); download it again") from None
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        raise CheckpointError(
            f"{path}: model_type {model_type!r} is not supported; known types: {', '.join(MODEL_TYPES)}"
        )
    family = MODEL_TYPES[model_type]
    for key, value in family.required.items():
        if config.get(key, value) != value:
            raise CheckpointError(
                f"{path}: {key} = {config[key]!r} is not supported; the shared transformer implies {value!r}"
            )
    return family, config


def tensor_files(directory: Path) -> dict[str, Path]:
    """The file that holds each tensor, from the index of a sharded checkpoint or from the single file's own header."""
    index = directory / INDEX
    if index.is_file():
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {name: directory / file for name, file in weight_map.items()}
        missing = sorted({path.name for path in files.values() if not path.is_file()})
        if missing:
            raise CheckpointError(
                f"{directory}: missing shard {', '.join(missing)} named in {INDEX}; download it again"
            )
        return files
    single = directory / SINGLE
    if not single.is_file():
        raise CheckpointError(
            f"{directory}: neither {SINGLE} nor {INDEX} is there; only safetensors checkpoints are read"
        )
    return dict.fromkeys(shapes(single), single)


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a safetensors file, from its header."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (a file handle, not a dict)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: damaged or truncated safetensors file ({error}); download it again") from None


def check_tensors(directory: Path, files: dict[str, Path], slots: dict[str, Slot], model: Transformer) -> None:
    """Every tensor that the model needs is there, none is stray, all have the right shape; else one error that names
    them all.
    """
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(set(files.values())):
        found |= shapes(path)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    problems: dict[str, list[str]] = defaultdict(list)
    for name, slot in slots.items():
        expected = shape_on_disk(parameters[slot.parameter], slot)
        if name not in found or name not in files:
            problems["missing"].append(name)
        elif found[name] != expected:
            problems["mis-shaped"].append(f"{name} {list(found[name])} instead of {list(expected)}")
    problems["stray"] += sorted(found.keys() - slots.keys())
    if any(problems.values()):
        listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names)
        raise CheckpointError(f"{directory}: tensors do not fit config.json ({listed})")


def destination(parameter: Tensor, slot: Slot) -> Tensor:
    """The part of a parameter that a tensor on disk fills, in the order of the disk."""
    part = parameter if slot.rows is None else parameter.narrow(0, slot.start, slot.rows)
    return part if slot.head_dim is None else in_pairs(part, slot.head_dim)


def shape_on_disk(parameter: Tensor, slot: Slot) -> tuple[int, ...]:
    """The shape of the tensor that fills a slot."""
    return (slot.rows or parameter.shape[0], *parameter.shape[1:])


def check_versions() -> None:
    """Refuse an unsupported library before any weights are read (case R8)."""
    for package, (first, beyond) in SUPPORTED.items():
        version = metadata.version(package)
        if not Version(first) <= Version(version) < Version(beyond):
            raise RuntimeError(f"{package} {version} is not supported: install {package}>={first},<{beyond}")
