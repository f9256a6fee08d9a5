"""The first weights of a checkpoint from one of the other family, as Dream 7B's are Qwen2.5 7B's (arXiv 2508.15487)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor

from entropycache.models.transformer import Transformer
from evaluation.training.tokenizers import SPECIALS


def inherit(model: Transformer, tokenizer: Tokenizer, parent: Transformer, parents_tokenizer: Tokenizer) -> None:
    """Copy the parent's weights into a model of the same layers, width and heads.

    Key and value heads that the model has fewer of are means over the parent's groups (GQA, arXiv 2305.13245, §2.1).
    A token has the embedding and head row of the parent's token of the same text or use; what the parent does not have
    (tokens, biases) stays as it was initialised.
    """
    state = parent.state_dict()
    known = parents_tokenizer.get_vocab()
    same = [
        (i, known[name]) for token, i in tokenizer.get_vocab().items() if (name := _counterpart(model, token)) in known
    ]
    ours, theirs = torch.tensor(same).unbind(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in ("embed.weight", "head.weight"):
                parameter[ours] = state[name][theirs].to(parameter)
            elif name.endswith("qkv.weight"):
                parameter.copy_(_fewer_heads(state[name], parent, model))
            elif name in state:
                parameter.copy_(state[name])


def _counterpart(model: Transformer, token: str) -> str:
    """The token of the other family that has this one's use; ordinary tokens are their own."""
    ours = SPECIALS[model.spec.family]
    theirs = SPECIALS["llada" if model.spec.family == "dream" else "dream"]
    uses = {ours.eos: theirs.eos, ours.mask: theirs.mask, ours.bos: theirs.bos}
    uses |= {ours.others[0]: theirs.others[0], ours.others[-1]: theirs.others[-1]}  # a turn's begin and end
    return uses.get(token, token)


def _fewer_heads(qkv: Float[Tensor, "n d"], parent: Transformer, model: Transformer) -> Float[Tensor, "m d"]:
    """Rows of a fused projection with every group of key heads, and of value heads, replaced by its mean."""
    spec, kept = parent.spec, model.spec.kv_heads
    heads = qkv.unflatten(0, (-1, spec.head_dim))
    queries, keys, values = heads.split([spec.heads, spec.kv_heads, spec.kv_heads])
    pooled = [part.unflatten(0, (kept, -1)).mean(dim=1) for part in (keys, values)]
    return torch.cat([queries, *pooled]).flatten(0, 1)
