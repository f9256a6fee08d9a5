"""Elastic-Cache by definition: every quantity of every row is kept whole and looked up, one row at a time.

Written from the rule alone; slow, without a cache class, packing, index arithmetic or fused attention. What it takes
from the model are its weights and the two halves of a layer around attention."""

from __future__ import annotations

import torch

from entropycache.decoding import Decoder, Decoding
from entropycache.models.transformer import Transformer
from entropycache.types import SequenceState


def attention_row(q, k, v, group):
    """One row's output and its head-averaged weights: q [h, e] against k, v [t, kv, e]."""
    weights = [torch.softmax(k[:, h // group] @ q[h] / q.shape[1] ** 0.5, dim=0) for h in range(q.shape[0])]
    output = torch.cat([w @ v[:, h // group] for h, w in enumerate(weights)])
    return output, sum(weights) / len(weights)


def literal(model: Transformer, prompt: list[int], decoding: Decoding, gamma: float, tracked: int):
    """The canvas and, per step and layer, the rows computed."""
    spec, decoder = model.spec, Decoder(decoding, model.spec)
    layers, group = range(spec.layers), spec.heads // spec.kv_heads
    state = SequenceState.start(torch.tensor(prompt), decoding.gen_length, spec.mask_id)
    total = state.length
    k = torch.zeros(spec.layers, total, spec.kv_heads, spec.head_dim, dtype=torch.float64)
    v, hidden = k.clone(), torch.zeros(spec.layers + 1, total, spec.hidden, dtype=torch.float64)
    s = torch.zeros(spec.layers, total, total, dtype=torch.float64)  # attention rows as last computed
    watched: list[list[int]] = [[] for _ in layers]
    just_committed: list[int] = []
    history = []
    while len(window := decoder.candidates(state).tolist()):
        settled = [row for row in range(total) if not state.masked[row]]
        read_from = [max(0, row - spec.shift) for row in window]
        rows = set(range(total))
        if state.step > 0:
            rows = set(window) | set(read_from) | set(just_committed) | {row for layer in watched for row in layer}
        computed = []
        for row in rows:
            hidden[0, row] = model.embed.weight[state.tokens[row]]
        for layer in layers:
            computed.append(sorted(rows))
            before = s[layer].clone()
            queries = {}
            for row in rows:
                rope = model.rope(total)[row : row + 1]
                q, kv = model.layers[layer].project(hidden[layer, row : row + 1], rope)
                queries[row], k[layer, row], v[layer, row] = q[0], kv[0, 0], kv[0, 1]
            for row in rows:
                output, s[layer, row] = attention_row(queries[row], k[layer], v[layer], group)
                hidden[layer + 1, row] = model.layers[layer].finish(hidden[layer, row][None].clone(), output[None])[0]
            if watched[layer]:
                now = torch.cat([s[layer, row] for row in watched[layer]])
                then = torch.cat([before[row] for row in watched[layer]])
                if now @ then / (now.norm() * then.norm()) < gamma:
                    rows = set(range(total))
        for layer in layers:
            asked = sum(s[layer, row] for row in read_from)
            watched[layer] = sorted(settled, key=lambda row: (-asked[row].item(), row))[:tracked]
        commit = decoder.commit(model.read_out(hidden[-1, read_from]), torch.tensor(window), state)
        state, just_committed = state.apply(commit), commit.rows.tolist()
        history.append(computed)
    return state.tokens[len(prompt) :].tolist(), history
