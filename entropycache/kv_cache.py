"""Keys and values of one sequence. Holds tensors, counts the rows written, decides nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entropycache.types import ModelSpec


class KVCache:
    """One buffer per sequence for all layers, allocated once, never grown.

    Keys are stored already rotated, so a row is rotated once for each time it is computed. The layout is [layer, keys
    and values, head, t, head_dim]: what attention reads of a head lies in one piece, and a step reads far more than it
    writes.
    """

    def __init__(self, spec: ModelSpec, rows: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.kv = torch.empty((spec.layers, 2, spec.kv_heads, rows, spec.head_dim), device=device, dtype=dtype)
        # Validity is known on the host; keeping it there costs no synchronise.
        self.valid = torch.zeros(rows, dtype=torch.bool)
        self.rows_written = 0  # summed over layers

    @property
    def rows(self) -> int:
        return self.kv.shape[3]

    @property
    def k(self) -> Float[Tensor, "l h t e"]:
        return self.kv[:, 0]

    @property
    def v(self) -> Float[Tensor, "l h t e"]:
        return self.kv[:, 1]

    def write(
        self, layer: int, rows: Int[Tensor, " q"], kv: Float[Tensor, "q 2 h e"]
    ) -> tuple[Float[Tensor, "h t e"], Float[Tensor, "h t e"]]:
        """Store the given rows' rotated keys and values of one layer; return the keys and values of every row.

        `rows` is sorted and without repeats, so `q == t` means every row.
        """
        of_layer = self.kv[layer]
        by_row = of_layer.permute(2, 0, 1, 3)
        if rows.numel() == self.rows:
            by_row.copy_(kv)
        else:
            by_row[rows] = kv
        self.rows_written += rows.numel()
        return of_layer[0], of_layer[1]

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
