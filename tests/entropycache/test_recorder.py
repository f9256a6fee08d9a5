"""Seconds, memory and analytic cost: what is measured is what happened (cases M2, M5)."""

import time

import pytest
import torch

from baselines import FullRecompute
from entropycache import Decoding, EntropyCache, engine, generate
from entropycache.flops import step_flops
from entropycache.models.transformer import Transformer
from entropycache.recorder import DECISION_PHASES, PHASES, Clock, PeakMemory, Recorder
from tests.models import random_model, random_spec


class Slow(Transformer):
    """A model whose every step takes at least 20 ms."""

    def forward_packed(self, steps):
        time.sleep(0.02)
        return super().forward_packed(steps)


def test_phases_add_up_to_the_time_that_passed():  # M2
    net = Slow(random_spec("llada")).requires_grad_(False)
    decoding = Decoding(5, "whole")
    start = time.perf_counter()
    out = generate(net, [1, 2, 3], EntropyCache(0.5, 2), decoding, trace=True)
    wall = time.perf_counter() - start
    assert set(out.seconds) == set(PHASES) > set(DECISION_PHASES)
    assert 5 * 0.02 <= out.seconds["forward"] <= out.total_seconds <= wall
    assert all(step.seconds["forward"] >= 0.02 for step in out.steps)
    assert sum(sum(step.seconds.values()) for step in out.steps) <= out.total_seconds + 1e-9


class Device(Clock):
    """A device that works behind the host's back: 100 ms a phase, and nothing can be read before all is done."""

    def __init__(self):
        super().__init__(torch.device("cpu"))
        self.marks, self.finished = 0, False

    def mark(self):
        self.marks += 1
        return float(self.marks)

    def seconds(self, start, end):
        assert self.finished, "a mark was read while the device was at work: that is a synchronise inside the loop"
        return (end - start) * 0.1


def test_work_that_ends_after_its_launch_is_timed_to_its_end_and_read_once_all_is_done(monkeypatch):  # M2
    device = Device()
    finish = Recorder.finish

    def done(recorder, *arguments):
        device.finished = True
        return finish(recorder, *arguments)

    monkeypatch.setattr(engine, "Clock", lambda _: device)
    monkeypatch.setattr(Recorder, "finish", done)
    out = generate(random_model("llada"), [1, 2], EntropyCache(0.5, 1), Decoding(3, "whole"), trace=True)
    assert out.seconds["forward"] == pytest.approx(3 * 0.1)
    assert [step.seconds["plan"] for step in out.steps] == pytest.approx([0.1] * 3)


def test_packed_sequences_share_a_steps_seconds():
    net = Slow(random_spec("llada")).requires_grad_(False)
    start = time.perf_counter()
    outs = generate(net, [[1, 2, 3], [1], [2, 3]], FullRecompute(), Decoding(4, "whole"), batch_size=3)
    wall = time.perf_counter() - start
    total = sum(out.seconds["forward"] for out in outs)
    assert 4 * 0.02 <= total <= wall


def test_entropy_costs_time_only_where_it_decides():
    net = random_model("llada")
    decoding = Decoding(4, "whole")
    assert generate(net, [1], EntropyCache(0.5, 2), decoding).seconds["entropy"] > 0
    assert generate(net, [1], FullRecompute(), decoding).seconds["entropy"] == 0
    traced = generate(net, [1], FullRecompute(), decoding, trace=True)
    assert traced.seconds["entropy"] == 0 and all(step.entropy is not None for step in traced.steps)


def test_flops_are_twice_the_multiply_adds_of_every_matrix_product():
    net = random_model("dream")
    decoding, prompt = Decoding(4, "whole"), [1, 2, 3]
    out = generate(net, prompt, EntropyCache(0.5, 2), decoding, trace=True)
    spec, rows = net.spec, 7
    expected = 0
    for step in out.steps:
        q, p = len(step.computed), len(step.predicted)
        weights = sum(w.numel() for layer in net.layers for w in layer.parameters() if w.ndim == 2)
        attention = 2 * spec.layers * spec.heads * spec.head_dim * rows
        expected += 2 * (q * (weights + attention) + p * spec.hidden * spec.vocab)
    assert out.flops == expected
    full = generate(net, prompt, FullRecompute(), decoding, predict_all=True)
    assert full.flops == 4 * step_flops(spec, spec.layers * rows, rows, rows)


def test_peak_memory_of_one_job_does_not_leak_into_the_next():  # M5
    memory = PeakMemory(torch.device("cpu"))
    memory.reset()
    if memory.read() is None:
        pytest.skip("this platform cannot tell a process's peak memory")
    before = memory.read()
    block = torch.ones(64, 1024, 1024, dtype=torch.uint8)
    assert memory.read() >= before + 60 * 2**20
    del block
    memory.reset()
    assert memory.read() < before + 30 * 2**20
