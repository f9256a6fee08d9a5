"""What a generation cost: seconds by phase, rows, steps, memory. Watches, decides nothing.

A timed run is not slowed by being timed: on the CPU a mark is one `perf_counter` call; on CUDA it is an event, and
events are read only when the sequence is finished. The records of single steps are kept only where a trace is asked
for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from entropycache.flops import step_flops
from entropycache.types import Commit, Generation, ModelSpec, Plan, SequenceState, StepRecord

# The parts of a step. `plan`, `observer`, `entropy` and `observe` are spent only to decide what to compute; the others
# whatever the policy. An observer is called inside the forward pass: `forward` is what is left of it.
PHASES = ("candidates", "plan", "forward", "observer", "commit", "entropy", "observe")
DECISION_PHASES = ("plan", "observer", "entropy", "observe")

Mark = float | torch.cuda.Event


class Clock:
    """Marks in time on one device, and the seconds between two of them."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def mark(self) -> Mark:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Mark, end: Mark) -> float:
        """Seconds from one mark to a later one. On CUDA both must have happened: synchronise first."""
        if isinstance(start, float) and isinstance(end, float):
            return end - start
        assert isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
        return start.elapsed_time(end) / 1000


class Recorder:
    """One sequence's record. The engine calls `span` for each phase and `step` once a step; `finish` makes the
    Generation.
    """

    def __init__(self, clock: Clock, spec: ModelSpec, trace: bool) -> None:
        self.clock, self.spec, self.trace = clock, spec, trace
        self.spans: list[tuple[str, Mark, Mark, float]] = []
        self.records: list[dict] = []
        self.nfe = self.refreshes = self.rows_total = self.rows_written = self.flops = 0

    def span(self, phase: str, start: Mark, end: Mark, share: float = 1.0) -> None:
        """Time spent in a phase; `share` is this sequence's part of a span that several sequences were in together."""
        self.spans.append((phase, start, end, share))

    def step(
        self,
        plan: Plan,
        compute: Int[Tensor, " q"],
        predict: Int[Tensor, " p"],
        commit: Commit,
        state: SequenceState,
        rows_written: int,
        head_rows: int,
    ) -> None:
        """One forward pass, after its commit."""
        self.nfe += 1
        self.refreshes += plan.refresh
        self.rows_total += state.length
        self.rows_written += rows_written
        self.flops += step_flops(self.spec, rows_written, state.length, head_rows)
        if self.trace:
            entropy = None if commit.entropy is None or not len(commit) else commit.entropy.max().item()
            self.records.append(
                {
                    "refresh": plan.refresh,
                    "computed": compute.tolist(),
                    "predicted": predict.tolist(),
                    "committed": commit.rows.tolist(),
                    "tokens": commit.tokens.tolist(),
                    "confidence": commit.confidence.tolist(),
                    "entropy": entropy,
                    "rows_written": rows_written,
                    "spans": len(self.spans),
                }
            )

    def finish(self, state: SequenceState, peak_memory_bytes: int | None, batch_size: int = 1) -> Generation:
        """Everything recorded, with the marks read."""
        if self.clock.cuda:
            torch.cuda.synchronize()
        return Generation(
            tokens=state.tokens[state.prompt_length :],
            prompt_length=state.prompt_length,
            nfe=self.nfe,
            refreshes=self.refreshes,
            rows_computed=self.rows_written / self.spec.layers,
            rows_total=self.rows_total,
            flops=float(self.flops),
            seconds=self._by_phase(self.spans),
            peak_memory_bytes=peak_memory_bytes,
            steps=self._step_records(),
            batch_size=batch_size,
        )

    def _by_phase(self, spans: Sequence[tuple[str, Mark, Mark, float]]) -> dict[str, float]:
        seconds = dict.fromkeys(PHASES, 0.0)
        for phase, start, end, share in spans:
            seconds[phase] += self.clock.seconds(start, end) * share
        seconds["forward"] -= seconds["observer"]
        return seconds

    def _step_records(self) -> list[StepRecord]:
        records, start = [], 0
        for record in self.records:
            end = record.pop("spans")
            records.append(StepRecord(**record, seconds=self._by_phase(self.spans[start:end])))
            start = end
        return records


class PeakMemory:
    """Peak memory since `reset`, so that one job's peak does not leak into the next of the same process.

    CUDA: the allocator's peak. CPU on Linux: the process's peak resident set (VmHWM), which the kernel lets a process
    reset by writing 5 to `/proc/self/clear_refs` (proc(5)); elsewhere None.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.resettable = False

    def reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:  # not Linux, or a container that forbids it: `read` then says None
            self.resettable = False
        else:
            self.resettable = True

    def read(self) -> int | None:
        """Bytes, or None where the platform cannot tell."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        if not self.resettable:
            return None
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
