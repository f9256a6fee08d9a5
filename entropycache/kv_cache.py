"""Keys and values of one sequence. Holds tensors, counts the rows written, decides nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entropycache.types import ModelSpec


class KVCache:
    """One buffer per sequence for all layers, allocated once, never grown.

    Keys are stored already rotated, so a row is rotated once for each time it is computed. The layout is [layer, t,
    head, head_dim]: writing a row is one contiguous copy, and attention reads it transposed without a copy.
    """

    def __init__(self, spec: ModelSpec, rows: int, *, device: torch.device, dtype: torch.dtype) -> None:
        shape = (spec.layers, rows, spec.kv_heads, spec.head_dim)
        self.k = torch.empty(shape, device=device, dtype=dtype)
        self.v = torch.empty(shape, device=device, dtype=dtype)
        # Validity is known on the host; keeping it there costs no synchronise.
        self.valid = torch.zeros(rows, dtype=torch.bool)
        self.rows_written = 0  # summed over layers

    @property
    def rows(self) -> int:
        return self.k.shape[1]

    def write(
        self, layer: int, rows: Int[Tensor, " q"], k: Float[Tensor, "q h e"], v: Float[Tensor, "q h e"]
    ) -> tuple[Float[Tensor, "t h e"], Float[Tensor, "t h e"]]:
        """Store the given rows' rotated keys and values of one layer; return the keys and values of every row.

        `rows` is sorted and without repeats, so `q == t` means every row.
        """
        k_all, v_all = self.k[layer], self.v[layer]
        if rows.numel() == self.rows:
            k_all.copy_(k)
            v_all.copy_(v)
        else:
            k_all.index_copy_(0, rows, k)
            v_all.index_copy_(0, rows, v)
        self.rows_written += rows.numel()
        return k_all, v_all

    def expect(self, rows: Int[Tensor, " q"]) -> None:
        """Announce the rows (CPU indices) that the coming forward writes; afterwards every row must hold something to
        attend to.
        """
        if rows.numel() < self.rows and self.valid.all():
            return
        self.valid[rows] = True
        if not self.valid.all():
            missing = self.valid.logical_not().nonzero().flatten()[:8].tolist()
            raise AssertionError(
                f"rows {missing} would be attended to but were never computed: the first step must be a refresh"
            )
