"""Dream: how its checkpoints name things (Dream-v0-Instruct-7B `config.json`; a Qwen2 body whose predictions are
shifted by one row).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entropycache.models.family import Family, Slot
from entropycache.types import ModelSpec

END_OF_TURN = "<|im_end|>"

# One user turn, ready for the assistant's answer: what the tokenizer's own chat template renders.
CHAT_TEMPLATE = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{content}"
    "<|im_end|>\n<|im_start|>assistant\n"
)

REQUIRED = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False}


def spec(config: Mapping[str, Any], special: Mapping[str, int]) -> ModelSpec:
    """`config.json` of a Dream checkpoint as numbers. `special`: special tokens by name, from the tokenizer's files
    (may be empty).
    """
    heads = config["num_attention_heads"]
    eos = config["eos_token_id"]
    return ModelSpec(
        family="dream",
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        rope_theta=float(config["rope_theta"]),
        norm_eps=config["rms_norm_eps"],
        qkv_bias=True,
        tied=config["tie_word_embeddings"],
        max_positions=config["max_position_embeddings"],
        mask_id=config["mask_token_id"],
        eos_id=eos,
        stop_ids=tuple(sorted({eos, special[END_OF_TURN]} if END_OF_TURN in special else {eos})),
        bos_id=config.get("bos_token_id"),
        shift=1,
    )


def config(spec: ModelSpec) -> dict[str, Any]:
    """The `config.json` that `spec` reads back."""
    if not spec.qkv_bias:
        raise ValueError("a Dream checkpoint has q/k/v biases; this model has none")
    return {
        "architectures": ["DreamModel"],
        "model_type": "Dream",
        **REQUIRED,
        "bos_token_id": spec.bos_id,
        "eos_token_id": spec.eos_id,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "mask_token_id": spec.mask_id,
        "max_position_embeddings": spec.max_positions,
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads,
        "pad_token_id": spec.eos_id,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tied,
        "torch_dtype": "float32",
        "vocab_size": spec.vocab,
    }


def slots(spec: ModelSpec) -> list[Slot]:
    """Every tensor of a Dream checkpoint and the place it fills."""
    head = [] if spec.tied else [Slot("lm_head.weight", "head.weight")]
    slots = [Slot("model.embed_tokens.weight", "embed.weight"), Slot("model.norm.weight", "norm"), *head]
    for i in range(spec.layers):
        disk, ours = f"model.layers.{i}", f"layers.{i}"
        q, k, v = (f"{disk}.self_attn.{name}_proj" for name in "qkv")
        slots += [
            Slot(f"{disk}.input_layernorm.weight", f"{ours}.attention_norm"),
            *Slot.stacked(f"{ours}.qkv", spec, q, k, v),
            Slot(f"{disk}.self_attn.o_proj.weight", f"{ours}.out.weight"),
            Slot(f"{disk}.post_attention_layernorm.weight", f"{ours}.mlp_norm"),
            Slot(f"{disk}.mlp.gate_proj.weight", f"{ours}.gate_up.weight", 0, spec.intermediate),
            Slot(f"{disk}.mlp.up_proj.weight", f"{ours}.gate_up.weight", spec.intermediate, spec.intermediate),
            Slot(f"{disk}.mlp.down_proj.weight", f"{ours}.down.weight"),
        ]
    return slots


FAMILY = Family(
    name="dream",
    model_type="Dream",
    required=REQUIRED,
    spec=spec,
    config=config,
    slots=slots,
    chat_template=CHAT_TEMPLATE,
)
