"""LLaDA: how its checkpoints name things (ML-GSAI LLaDA-8B-Instruct `config.json`, `modeling_llada.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entropycache.models.family import Family, Slot
from entropycache.types import ModelSpec

# LLaDA ends a turn with <|eot_id|>, whose id stands in no field of config.json; it is read from the tokenizer's files
# by name.
EOT = "<|eot_id|>"

# One user turn, ready for the assistant's answer: what the tokenizer's own chat template renders.
CHAT_TEMPLATE = (
    "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\n{content}"
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)

REQUIRED = {  # what the transformer of this package does; any other value would be silently wrong
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_type": "llama",
    "include_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "rope": True,
    "scale_logits": False,
}


def spec(config: Mapping[str, Any], special: Mapping[str, int]) -> ModelSpec:
    """`config.json` of a LLaDA checkpoint as numbers. `special`: special tokens by name, from the tokenizer's files
    (may be empty).
    """
    heads = config["n_heads"]
    eos = config["eos_token_id"]
    return ModelSpec(
        family="llada",
        layers=config["n_layers"],
        hidden=config["d_model"],
        heads=heads,
        kv_heads=config.get("n_kv_heads") or heads,
        intermediate=config["mlp_hidden_size"],
        vocab=config.get("embedding_size") or config["vocab_size"],
        rope_theta=float(config["rope_theta"]),
        norm_eps=config.get("rms_norm_eps", 1e-5),
        qkv_bias=config["include_qkv_bias"],
        tied=config["weight_tying"],
        max_positions=config["max_sequence_length"],
        mask_id=config["mask_token_id"],
        eos_id=eos,
        stop_ids=tuple(sorted({eos, special[EOT]} if EOT in special else {eos})),
        bos_id=special.get("<|startoftext|>"),
        shift=0,
    )


def config(spec: ModelSpec) -> dict[str, Any]:
    """The `config.json` that `spec` reads back."""
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        **REQUIRED,
        "include_qkv_bias": spec.qkv_bias,
        "d_model": spec.hidden,
        "embedding_size": spec.vocab,
        "eos_token_id": spec.eos_id,
        "mask_token_id": spec.mask_id,
        "max_sequence_length": spec.max_positions,
        "mlp_hidden_size": spec.intermediate,
        "n_heads": spec.heads,
        "n_kv_heads": spec.kv_heads,
        "n_layers": spec.layers,
        "pad_token_id": spec.eos_id,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "torch_dtype": "float32",
        "vocab_size": spec.vocab,
        "weight_tying": spec.tied,
    }


def slots(spec: ModelSpec) -> list[Slot]:
    """Every tensor of a LLaDA checkpoint and the place it fills."""
    head = [] if spec.tied else [Slot("model.transformer.ff_out.weight", "head.weight")]
    slots = [Slot("model.transformer.wte.weight", "embed.weight"), Slot("model.transformer.ln_f.weight", "norm"), *head]
    for i in range(spec.layers):
        disk, ours = f"model.transformer.blocks.{i}", f"layers.{i}"
        q, k, v = (f"{disk}.{name}_proj" for name in "qkv")
        slots += [
            Slot(f"{disk}.attn_norm.weight", f"{ours}.attention_norm"),
            *Slot.stacked(f"{ours}.qkv", spec, q, k, v),
            Slot(f"{disk}.attn_out.weight", f"{ours}.out.weight"),
            Slot(f"{disk}.ff_norm.weight", f"{ours}.mlp_norm"),
            Slot(f"{disk}.ff_proj.weight", f"{ours}.gate_up.weight", 0, spec.intermediate),
            Slot(f"{disk}.up_proj.weight", f"{ours}.gate_up.weight", spec.intermediate, spec.intermediate),
            Slot(f"{disk}.ff_out.weight", f"{ours}.down.weight"),
        ]
    return slots


FAMILY = Family(
    name="llada",
    model_type="llada",
    required=REQUIRED,
    spec=spec,
    config=config,
    slots=slots,
    chat_template=CHAT_TEMPLATE,
)
