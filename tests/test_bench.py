"""The bench on a model of a few rows; the memory estimate; running out of memory in mid-run (issue: fast)."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace

import pytest
import torch

import entropycache.engine as engine
import entropycache.memory as memory
from baselines import D2Cache, ElasticCache, FullRecompute
from entropycache import Decoding, EntropyCache, generate, stream
from entropycache.decoding import Decoder
from entropycache.engine import start_sequence, start_state
from entropycache.flops import step_flops
from entropycache.recorder import Clock, Recorder
from evaluation.bench.memory import measure_loading, measure_memory
from evaluation.bench.methods import Method, measure_methods
from evaluation.bench.model import bare_arithmetic, random_model
from evaluation.bench.plot import plot_growth
from evaluation.bench.results import Results
from evaluation.bench.steps import FixedRows, measure_steps, prompt_of, repeated
from tests import models
from tests.scripts.conftest import script  # noqa: F401 (a fixture)

SHAPE = {
    "name": "toy",
    "dtype": "float32",
    "layers": 2,
    "hidden": 24,
    "heads": 4,
    "kv_heads": 2,
    "intermediate": 30,
    "vocab": 60,
    "family": "dream",
    "rope_theta": 1e4,
    "norm_eps": 1e-6,
    "qkv_bias": True,
    "tied": False,
    "max_positions": 128,
    "mask_id": 59,
    "eos_id": 58,
    "stop_ids": [58],
    "bos_id": None,
    "shift": 1,
}
CPU = torch.device("cpu")
METHODS = [
    Method("full_recompute", FullRecompute(), {"window": "blockwise", "block_length": 8}, 1),
    Method("entropycache", EntropyCache(float("inf"), 4), {"window": "blockwise", "block_length": 8}, 0.25),
    Method("d2cache", D2Cache(current_k=4), {"window": "whole", "certainty_sigma": 3.0}, 0),
    Method("elastic_cache", ElasticCache(), {"window": "sliding", "window_length": 4}, 0),
]
SCHEDULE = {"block_length": 8, "steps": 4}


@pytest.fixture(scope="module")
def model():
    return random_model(SHAPE, CPU)


def test_bare_arithmetic_is_the_matrix_products_of_a_step(model):
    """Counted by torch, it is what the analytic cost says, whatever the number of rows."""
    from torch.utils.flop_counter import FlopCounterMode

    for computed, predicted in ((3, 1), (24, 8)):
        call = bare_arithmetic(model, [computed], 24, predicted)
        with FlopCounterMode(display=False) as counted, torch.inference_mode():
            logits = call()
        assert logits.shape == (predicted, SHAPE["vocab"])
        products = counted.get_total_flops()
        rows, spec = 24, model.spec
        attention = 4 * spec.layers * computed * rows * spec.hidden  # not counted on every platform's fused kernel
        expected = step_flops(spec, spec.layers * computed, rows, predicted)
        assert products in (expected, expected - attention)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_steps_compute_the_rows_they_name(family, monkeypatch):
    """Counted where they pass: the first layer and the head see what a result names, round by round."""
    model = random_model(SHAPE | {"family": family, "shift": int(family == "dream")}, CPU)
    seen: dict[str, list[int]] = {"layer": [], "head": []}
    project = model.layers[0].project

    def counted(x, *rest):
        seen["layer"].append(len(x))
        return project(x, *rest)

    monkeypatch.setattr(model.layers[0], "project", counted)
    model.head.register_forward_hook(lambda module, inputs, out: seen["head"].append(out.shape[0]))
    config = {"prompts": [16], "canvas": 8, "rows": [1, 4, 9, 17], "predict": 4, "seconds": 0.0}
    rows = []
    for row in measure_steps(model, config):
        # of a partial step: a refresh, then each round and the one that does not count
        named = [(24, row["predicted"]), *[(row["computed"], row["predicted"])] * (row["rounds"] + 1)]
        passed = list(zip(seen["layer"], seen["head"], strict=True))
        assert passed == named[int(row["computed"] == 24) :]
        for counts in seen.values():
            counts.clear()
        rows.append(row)
    assert [row["computed"] for row in rows] == [1, 4, 9, 17, 24]
    assert [row["predicted"] for row in rows] == [1, 4, 4, 4, 4]
    assert all(row["step_seconds"] > 0 and row["bare_seconds"] > 0 and row["rounds"] == 3 for row in rows)


def test_a_step_made_again_and_again_stays_the_same(model):
    """More rounds than the schedule has steps: one token is committed in each."""
    decoding, clock = Decoding(8, window="sliding", window_length=4), Clock(CPU)
    start = start_state(prompt_of(model, 5), decoding, model.spec)
    recorder = Recorder(clock, model.spec, trace=True)
    sequence = start_sequence(0, start, model, FixedRows(13), decoding, 0, recorder)
    step = repeated(sequence, model, clock)
    with torch.inference_mode():
        for _ in range(20):
            step()
    assert [len(record["committed"]) for record in recorder.records] == [1] * 20


def test_methods_give_the_same_tokens_packed_and_alone(model):
    config = {"prompts": [9], "canvas": 16, "batches": [1, 3, 2], "steps": 3}
    rows = list(measure_methods(model, METHODS, config, SCHEDULE))
    assert len(rows) == len(METHODS) * 3
    assert all(row["same_tokens"] and 0 <= row["decision_share"] < 1 for row in rows)
    assert {row["rows_computed"] for row in rows if row["method"] == "full_recompute"} == {25, 50, 75}
    assert all(row["decision_parts"]["entropy"] > 0 for row in rows if row["method"] == "entropycache")


def test_a_whole_canvas_is_reckoned_from_its_steps(model):
    (row,) = measure_methods(
        model, METHODS[:1], {"prompts": [9], "canvas": 16, "batches": [1], "steps": None}, SCHEDULE
    )
    assert row["steps"] == 7
    assert row["seconds_per_token"] * 16 == pytest.approx(8 * row["first_step_seconds"])


def test_memory_is_measured_beside_weights_and_buffers(model):
    rows = list(measure_memory(model, METHODS, {"prompts": [9], "canvas": 16, "batches": [2], "steps": 1}, SCHEDULE))
    if not rows:
        pytest.skip("this platform cannot tell a process's peak memory")
    keys_and_values = 2 * 2 * model.spec.layers * 25 * model.spec.kv_heads * model.spec.head_dim * 4
    assert {row["method"]: row["buffers"] >= keys_and_values for row in rows} == {m.name: True for m in METHODS}
    validity = 2 * 25
    assert next(row["buffers"] for row in rows if row["method"] == "full_recompute") == keys_and_values + validity


def test_growth_is_plotted(model, tmp_path):
    config = {"prompts": [8, 24], "canvas": 8, "batches": [1], "steps": 1}
    plot_growth(list(measure_methods(model, METHODS[:2], config, SCHEDULE)), tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_the_script_replaces_the_part_it_measured_and_writes_a_profile(script, tmp_path):  # noqa: F811
    small = [f"shape.{key}={json.dumps(value)}" for key, value in SHAPE.items() if key not in ("name", "family")]
    small += ["steps.prompts=[8]", "steps.canvas=8", "steps.rows=[4]", "steps.seconds=0", f"output={tmp_path}"]
    small += ["memory.prompts=[8]", "memory.canvas=32", "memory.steps=1"]
    for parts in ("parts=[memory]", "parts=[steps]"):
        code, out, err = script("bench.py", parts, "--profile", *small)
        assert code == 0, err
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())["shapes"]["bench"]
    assert set(record["parts"]) == {"memory", "steps"}
    assert [row["computed"] for row in record["parts"]["steps"]["rows"]] == [4, 16]
    assert "aten::" in next(tmp_path.glob("*_profile.txt")).read_text()
    before = path.read_text()
    for wrong, said in (
        ("parts=[speed]", "parts 'speed' is unknown; known: steps, methods"),
        ("parts=[]", "parts"),
        ("parts=null", "parts"),
        ("threads=-1", "threads -1 must be a whole number of threads, 1 or above"),
        ("device=gpu", "device 'gpu' is unknown; known: cpu, cuda"),
        ("output=null", "output"),
        ("shape.dtype=float99", "shape.dtype 'float99' is unknown"),
        ("shape.heads=0", "shape.heads 0 must be"),
        ("+shape.width=1", "shape 'width' is unknown"),
        ("shape.layers=3", "shape.layers=3"),  # another shape than the file holds under this name
        ("steps.rows=4", "steps.rows=4 must be a list"),
        ("compared=null", "compared=None must be a mapping"),
        ("compared.entropycache.refresh_share=nan", "compared.entropycache.refresh_share nan must be a share"),
        ("profiler=abc", "profiler=abc must be true or false"),
        ("steps.rows=[abc]", "steps.rows 'abc' must be a whole number"),
        ("steps.rows=[17]", "steps.rows: 17 are more than the 16 of prompt and canvas"),
        ("steps.prompts=[200]", "steps.prompts: 200 and a canvas of 8 exceed shape.max_positions=128; 120 would do"),
        ("steps.seconds=abc", "steps.seconds"),
        ("schedule.block_length=0", "schedule.block_length 0 must be"),
    ):
        code, _, err = script("bench.py", "parts=[steps]", *small, wrong)
        assert code == 1 and err.startswith("error: ") and said in err and err.count("\n") == 1, (wrong, err)
    for wrong, said in (
        ("methods.batches=[-1]", "methods.batches -1 must be"),
        ("methods.steps=0", "methods.steps 0 must be"),
        ("methods.steps=11", "methods.steps=11 are more than the 10 after the first; 10 would do"),
        ("methods.canvas=16", "methods.canvas=16 must be a multiple of schedule.block_length=32"),
        ("methods.prompts=[0]", "methods.prompts 0 must be"),
        ("loading.gigabytes=0", "loading.gigabytes 0 must be"),
    ):
        small_methods = ["methods.prompts=[8]", "methods.canvas=32"]
        code, _, err = script("bench.py", "parts=[methods,loading]", *small, *small_methods, wrong)
        assert code == 1 and said in err, (wrong, err)
    assert path.read_text() == before
    path.write_text("{}")
    assert "is no file of bench results" in script("bench.py", "parts=[steps]", *small)[2]


def test_a_part_that_ends_early_does_not_replace_a_complete_one(tmp_path):
    results = Results(tmp_path, CPU, SHAPE)
    results.write("packing", {"steps": 1}, [{"rows": 1}, {"rows": 2}])
    results.write("packing", {"steps": 2}, [{"rows": 3}], complete=False)
    found = results.read()["shapes"]["toy"]
    assert [row["rows"] for row in found["parts"]["packing"]["rows"]] == [1, 2]
    assert [row["rows"] for row in found["unfinished"]["packing"]["rows"]] == [3]
    results.write("packing", {"steps": 2}, [{"rows": 3}, {"rows": 4}])
    found = results.read()["shapes"]["toy"]
    assert [row["rows"] for row in found["parts"]["packing"]["rows"]] == [3, 4] and "unfinished" not in found


def test_the_refreshes_of_a_block_wise_method_are_its_blocks():
    decoding = METHODS[0].decode(16, SCHEDULE)
    assert decoding.total_steps == 8
    assert [Method("", FullRecompute(), {}, share).refreshes(decoding) for share in ("blocks", 1, 0)] == [1, 7, 0]


def test_the_checkpoint_that_is_read_has_the_size_asked_for(model):
    found = measure_loading(model.spec, 0.01)
    assert found["checkpoint_bytes"] == pytest.approx(1e7, rel=0.05)
    with pytest.raises(ValueError, match=r"loading.gigabytes=1e-06 is less than a layer of this shape; 0\.00 would do"):
        measure_loading(model.spec, 1e-6)


PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10], [11, 12, 13]]
DECODING = Decoding(8, "blockwise", block_length=4)


@pytest.mark.parametrize(
    ("policy", "decoding"),
    [
        (FullRecompute(), DECODING),
        (D2Cache(current_k=4), Decoding(8, "whole", certainty_sigma=3.0)),
        (ElasticCache(), Decoding(8, "sliding", window_length=4)),
    ],
    ids=["full", "d2cache", "elastic"],
)
def test_a_batch_that_cannot_fit_is_refused_before_the_first_sample(monkeypatch, policy, decoding):
    net = models.random_model("llada")
    longest = sorted((len(prompt) + 8 for prompt in PROMPTS), reverse=True)

    def needed(batch):
        return memory.batch_bytes(net.spec, policy, decoding, longest[:batch], net.dtype, False)

    assert 0 < needed(1) < needed(2) < needed(3)
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed(3) - 1)
    steps = []
    monkeypatch.setattr(engine, "advance", lambda *_: steps.append(1))
    with pytest.raises(ValueError, match=r"batch_size 4 of 13 rows needs an estimated .* batch_size 2 would do"):
        generate(net, PROMPTS, policy, decoding, batch_size=4)
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed(1) - 1)
    with pytest.raises(ValueError, match="not even one sequence fits"):
        generate(net, PROMPTS, policy, decoding, batch_size=1)
    assert not steps


def test_what_fits_or_cannot_be_told_is_not_refused(monkeypatch):
    net = models.random_model("llada")
    for free in (None, memory.batch_bytes(net.spec, FullRecompute(), DECODING, [13, 11, 11, 10], net.dtype, False)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        assert len(generate(net, PROMPTS, FullRecompute(), DECODING, batch_size=4)) == 4


def test_free_memory_is_what_the_system_says():
    free = memory.free_bytes(CPU)
    assert free is None or free > 2**20
    assert memory.free_bytes(torch.device("meta")) is None


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    ids=["cuda", "cpu"],
)
def test_out_of_memory_halves_the_batch_and_loses_nothing(monkeypatch, error):
    net = models.random_model("dream")
    expected = [out.tokens.tolist() for out in generate(net, PROMPTS, EntropyCache(0.5, 2), DECODING, batch_size=4)]
    real, seen = engine.advance, []

    def advance(model, active, clock, predict_all):
        seen.append(len(active))
        done = real(model, active, clock, predict_all)
        if len(active) > 2 and len(seen) > 3:  # after some steps, with policies, caches and tokens already changed
            raise error
        return done

    monkeypatch.setattr(engine, "advance", advance)
    with pytest.warns(UserWarning, match="out of memory with batch_size 4 on cpu: going on with 2"):
        outs = dict(stream(net, PROMPTS, EntropyCache(0.5, 2), DECODING, batch_size=4))
    assert [outs[index].tokens.tolist() for index in range(4)] == expected
    assert {out.batch_size for out in outs.values()} == {2}
    assert max(seen[4:]) == 2


def test_out_of_memory_of_a_single_sequence_and_other_errors_are_errors(monkeypatch):
    net = models.random_model("llada")
    for error in (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("something else")):

        def advance(*_, error=error):
            raise error

        monkeypatch.setattr(engine, "advance", advance)
        with pytest.raises(RuntimeError, match=str(error)):
            generate(net, [[1]], FullRecompute(), DECODING, batch_size=1 if "CUDA" in str(error) else 4)


def test_caches_of_finished_sequences_are_gone_before_the_next_start(monkeypatch):
    """Of 6 sequences, 2 at a time: never more than 2 caches, although two finish in the same step."""
    net, alive, most = models.random_model("llada"), weakref.WeakSet(), []
    real = engine.start_sequence

    def start(*arguments):
        sequence = real(*arguments)
        alive.add(sequence.cache)
        most.append(len(alive))
        return sequence

    monkeypatch.setattr(engine, "start_sequence", start)
    for batch_size in (1, 2):
        most.clear()
        assert len(generate(net, [[1, 2]] * 6, EntropyCache(0.5, 2), DECODING, batch_size=batch_size)) == 6
        assert len(most) == 6 and max(most) == batch_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(64, "whole", temperature=0.5),
        Decoding(64, "whole", confidence="negative_entropy"),
        Decoding(64, "whole", rule="threshold", threshold=-1.0),
    ],
    ids=["temperature", "negative entropy", "everything at once"],
)
def test_the_estimate_covers_what_is_made_of_logits(decoding, dtype):
    """Counted by torch: every tensor made while logits are read and entropies taken, none of them freed too early."""
    from torch.utils._python_dispatch import TorchDispatchMode

    vocab = 5000
    logits = torch.randn(64, vocab).to(dtype)
    state = start_state([1, 2, 3], decoding, replace(models.random_model("llada").spec, vocab=vocab, mask_id=4999))

    class Peak(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.sizes, self.peak = weakref.WeakKeyDictionary(), 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for tensor in [out] if isinstance(out, torch.Tensor) else out if isinstance(out, tuple) else []:
                storage = tensor.untyped_storage()
                if isinstance(tensor, torch.Tensor) and storage.data_ptr() != logits.untyped_storage().data_ptr():
                    self.sizes[storage] = storage.nbytes()
            self.peak = max(self.peak, sum(self.sizes.values()))
            return out

    spec = replace(models.random_model("llada").spec, vocab=vocab, mask_id=4999)
    predict = torch.arange(3, 67)
    with Peak() as made:
        decoder = Decoder(decoding, spec)
        reading = decoder.read(logits, predict, state)
        engine.with_entropy(decoder.decide(reading, predict, state), reading.log_probability, predict)
    estimated = 64 * vocab * memory.logit_bytes(dtype, decoding.temperature > 0)
    assert 0.4 * estimated < made.peak + logits.nbytes <= 1.02 * estimated
