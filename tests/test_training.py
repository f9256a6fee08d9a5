"""Training of the small checkpoints: data by step alone, the objective, resuming, and the committed records."""

import json
import random
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from entropycache.models.checkpoint import load_model, save_checkpoint
from entropycache.models.tokenizer import Tokenizer as ShippedTokenizer
from entropycache.models.transformer import Transformer
from entropycache.types import ModelSpec
from evaluation.benchmarks import mini
from evaluation.benchmarks.mini import exercises
from evaluation.benchmarks.mini.common import split_of
from evaluation.training import tokenizers
from evaluation.training.data import Batch, Batches, Stage
from evaluation.training.evaluate import decode, final, shots_for
from evaluation.training.trainer import Record, Schedule, Trainer, Workers, initialise, loss_of, write_record
from tests.conftest import ROOT

ASSETS = ROOT / "entropycache" / "assets"
EVEN = dict.fromkeys(mini.GENERATORS, 1.0)
FAMILIES = ("llada", "dream")


def spec_for(family: str, tokenizer: tokenizers.Tokenizer) -> ModelSpec:
    ids = tokenizer.get_vocab()
    eos = ids["<|endoftext|>"]
    return ModelSpec(
        family=family,
        layers=2,
        hidden=32,
        heads=4,
        kv_heads=4 if family == "llada" else 2,
        intermediate=48,
        vocab=1024,
        rope_theta=1e5,
        norm_eps=1e-5,
        qkv_bias=family == "dream",
        tied=False,
        max_positions=1024,
        mask_id=ids[tokenizers.SPECIALS[family].mask],
        eos_id=eos,
        stop_ids=(eos,),
        bos_id=None,
        shift=int(family == "dream"),
    )


def batches_for(family: str, lengths: dict[int, float], tokens: int = 512, seed: int = 0, **kinds: float) -> Batches:
    tokenizer = tokenizers.load(family, ASSETS / f"tiny_{family}")
    assert tokenizer is not None
    stage = Stage(10**9, lengths, EVEN, tokens, **kinds)
    return Batches(tokenizer, family, [stage], mask_all=0.0, mask_shots=0.5, seed=seed)


def trainer_for(family: str, work: Path, steps: int = 20, threads: int = 1) -> Trainer:
    batches = batches_for(family, {128: 1.0})
    model = Transformer(spec_for(family, batches.tokenizer))
    initialise(model, 0)
    return Trainer(model, batches, Schedule({-1: 0.0, 2: 1e-3, steps: 1e-3}), 0.01, 1.0, work, threads)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_is_a_function_of_seed_and_step(family: str) -> None:
    one, other, third = (batches_for(family, {96: 1.0, 128: 1.0}, seed=seed) for seed in (0, 0, 1))
    other.batch(3)
    assert torch.equal(one.batch(7).ids, other.batch(7).ids)
    assert torch.equal(one.batch(7).masked, other.batch(7).masked)
    assert one.batch(7).ids.tolist() != third.batch(7).ids.tolist()
    assert one.batch(7).ids.tolist() != one.batch(8).ids.tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("spare", "ends"), [(0.0, 0.0), (1.0, 0.0), (0.0, 0.5), (1.0, 1.0)])
def test_two_complementary_masks_over_answers_alone(family: str, spare: float, ends: float) -> None:
    batches = batches_for(family, {256: 1.0}, tokens=4096, spare=spare, ends=ends)
    batch = batches.batch(0)
    first, second = batch.ids.chunk(2)
    one, other = batch.masked.chunk(2)
    assert torch.equal(first, second)
    assert not (one & other).any()
    before_canvas = tokenizers.chat(family, "\0").partition("\0")[2]
    for ids, targets in zip(first, one | other, strict=True):
        start = int((~targets).nonzero().max()) + 1
        assert batches.tokenizer.decode(ids[:start].tolist(), skip_special_tokens=False).endswith(before_canvas)
        assert ids[-1] == batches.eos
        assert targets[start:].all()
        assert not targets[:12].any()


def parts_of(batch: Batch) -> Iterator[tuple[list[int], list[bool]]]:
    """Token ids of each answer of a batch, and which of them the first copy hides."""
    one, other = batch.masked.chunk(2)
    for ids, first, both in zip(batch.ids, one, one | other, strict=False):
        edges = [*both.diff(prepend=torch.tensor([False])).nonzero().squeeze(1).tolist(), len(both)]
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            yield ids[start:end].tolist(), first[start:end].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_ends_are_hidden_from_a_place_drawn_for_each_part(family: str) -> None:
    shares = []
    for _, out in parts_of(batches_for(family, {256: 1.0}, tokens=16384, ends=1.0).batch(0)):
        assert out == sorted(out), "nothing is open after the first masked token of a part"
        shares.append(sum(out) / len(out))
    assert min(shares) < 0.1 and max(shares) > 0.9 and 0.35 < sum(shares) / len(shares) < 0.65


@pytest.mark.parametrize("family", FAMILIES)
def test_a_number_is_hidden_wherever_it_stands_in_an_answer(family: str) -> None:
    def split_numbers(**kinds: float) -> tuple[int, int]:
        batches = batches_for(family, {256: 1.0}, tokens=16384, **kinds)
        split = repeated = 0
        for ids, out in parts_of(batches.batch(0)):
            seen: dict[str, str] = {}
            pieces = [batches.tokenizer.decode([i]) for i in ids]
            for digits, run in groupby(zip(pieces, out, strict=True), lambda pair: pair[0].isdigit()):
                if digits:
                    number, mask = zip(*run, strict=True)
                    repeated += "".join(number) in seen
                    split += seen.setdefault("".join(number), str(mask)) != str(mask)
        return split, repeated

    split, repeated = split_numbers(numbers=1.0)
    assert split == 0 and repeated > 50
    assert split_numbers()[0] > 20


@pytest.mark.parametrize("family", FAMILIES)
def test_shot_spans_are_exactly_the_shots_answers(family: str) -> None:
    batches = batches_for(family, {256: 1.0})
    for name in mini.GENERATORS:
        *shots, doc = mini.items(name, "train", 4)
        made = batches.render(name, doc, shots)
        spans = [batches.tokenizer.decode(made.ids[a:b]).lstrip(" ") for a, b in made.shots]
        assert [s.rstrip() for s in spans] == [mini.answer(name, shot).lstrip(" ") for shot in shots]
        assert batches.tokenizer.decode(made.ids[made.canvas :]) == mini.answer(name, doc)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_has_room_for_what_it_draws(family: str) -> None:
    common, own = (
        OmegaConf.load(ROOT / "conf" / name).data for name in ("train_tiny.yaml", f"train/tiny_{family}.yaml")
    )
    stages = [{**common, **stage} for stage in own.stages]
    drawn = {(name, length) for stage in stages for name in stage["benchmarks"] for length in stage["lengths"]}
    batches = batches_for(family, {96: 1.0})
    for name, length in sorted(drawn):
        assert len(batches.sequence(name, length, random.Random(0)).ids) <= length


def test_a_length_that_no_item_fits_into_is_named() -> None:
    with pytest.raises(ValueError, match="no item of mini_mbpp fits into 64 tokens: data.stages must give it a longer"):
        batches_for("dream", {64: 1.0}).sequence("mini_mbpp", 64, random.Random(0))


def test_the_shipped_tokenizers_read_as_the_trainer_wrote_them() -> None:
    for family in FAMILIES:
        ours = tokenizers.load(family, ASSETS / f"tiny_{family}")
        shipped = ShippedTokenizer(ASSETS / f"tiny_{family}")
        assert ours is not None
        assert len(shipped) == 1024
        for name in mini.GENERATORS:
            doc = mini.items(name, "test", 1)[0]
            text = tokenizers.chat(family, mini.prompt(name, doc, shots_for(name, doc)))
            assert shipped.encode(text) == ours.encode(text, add_special_tokens=False).ids
        odd = "Ωμέγα → 12.5 % «x»\t\r\n 007"
        assert shipped.decode(shipped.encode(odd)) == odd
        digits = shipped.encode("2026")
        assert [shipped.decode([i]) for i in digits] == list("2026")


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_is_the_cross_entropy_of_the_masked_tokens_read_where_the_family_reads_them(family: str) -> None:
    trainer = trainer_for(family, Path("unused"))
    model, batch = trainer.model, trainer.batches.batch(0)
    ids = batch.ids.masked_fill(batch.masked, model.spec.mask_id)
    log_p = model.forward_full(ids).log_softmax(-1)
    if family == "dream":
        log_p = torch.cat([log_p[:, :1], log_p[:, :-1]], dim=1)
    expected = -log_p.gather(-1, batch.ids[..., None])[..., 0][batch.masked].sum()
    torch.testing.assert_close(loss_of(model, batch), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(model.read_out(model.hidden(ids)), model.forward_full(ids))


def test_the_number_of_threads_changes_nothing() -> None:
    def gradients(threads: int) -> tuple[float, list[Tensor]]:
        trainer = trainer_for("llada", Path("unused"))
        loss = Workers(trainer.model, threads).gradients(trainer.batches.batch(0))
        return loss, [p.grad for p in trainer.model.parameters() if p.grad is not None]

    (loss, one), (same, two) = gradients(1), gradients(2)
    assert loss == pytest.approx(same, rel=1e-6)
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def run(trainer: Trainer) -> Trainer:
    trainer.run(minutes=10, save_every=10, evaluate_every=10, after_save=lambda *_: None, show=lambda _: None)
    return trainer


def test_a_training_in_two_pieces_equals_one_in_one(tmp_path: Path) -> None:
    whole = run(trainer_for("llada", tmp_path / "whole", steps=6))
    run(trainer_for("llada", tmp_path / "pieces", steps=3))
    second = trainer_for("llada", tmp_path / "pieces", steps=6)
    assert second.resume()
    assert second.step == 3
    run(second)
    assert second.record.first_losses == whole.record.first_losses
    assert len(second.record.first_losses) == 6
    assert [piece["last_step"] for piece in second.record.pieces] == [3, 6]
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_loss_falls_and_a_stopped_training_is_saved(tmp_path: Path) -> None:
    trainer = trainer_for("dream", tmp_path, steps=60)
    run(trainer)
    losses = trainer.record.first_losses
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    again = trainer_for("dream", tmp_path, steps=120)
    assert again.resume()
    again.stop()
    assert run(again).step == 60


def test_schedule_is_straight_between_its_knots_and_ends_at_the_last() -> None:
    schedule = Schedule({-1: 0.0, 9: 1.0, 49: 1.0, 50: 0.5, 80: 0.5, 100: 0.0})
    rates = [schedule.rate(step) for step in range(101)]
    assert schedule.steps == 100
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:81] == [1.0] * 41 + [0.5] * 31
    assert rates[90] == pytest.approx(0.25)
    assert rates[100] == 0.0
    with pytest.raises(ValueError, match="no learning rate for step 101"):
        schedule.rate(101)


def test_a_training_goes_on_from_a_checkpoint_and_its_record(tmp_path: Path) -> None:
    first = run(trainer_for("llada", tmp_path / "first", steps=3))
    save_checkpoint(first.model, tmp_path / "checkpoint")
    write_record(first.record, tmp_path / "checkpoint" / "training_record.json")
    second = trainer_for("llada", tmp_path / "second", steps=5)
    second.continue_from(tmp_path / "checkpoint")
    assert second.step == 3
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    run(second)
    assert second.record.first_losses[:3] == first.record.first_losses
    assert [piece["last_step"] for piece in second.record.pieces] == [3, 5]


def test_decode_fills_every_row_and_stops_after_an_end(tmp_path: Path) -> None:
    trainer = trainer_for("dream", tmp_path)
    with torch.no_grad():
        canvas = decode(trainer.model, [5, 6, 7], 16, block=8)
    assert canvas.numel() == 16
    eos, mask = trainer.model.spec.eos_id, trainer.model.spec.mask_id
    assert mask not in canvas.tolist() or eos in canvas.tolist()


def test_final_answers_are_read_after_the_last_mark() -> None:
    assert final("mini_gsm8k", "#### 3\n1+1=2 pens\n#### 2\n") == "2"
    assert final("mini_math500", r"$1+1=2$. The answer is $\boxed{\frac{1}{2}}$.") == r"{\frac{1}{2}}"
    assert final("mini_bbh_cot", "So the answer is Yes.") == "Yes"
    assert final("mini_gsm8k", "no mark") == "no mark"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_committed_checkpoint_has_its_record_and_its_size(family: str) -> None:
    folder = ASSETS / f"tiny_{family}"
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"tiny_{family} is not trained yet")
    record = Record(**json.loads((folder / "training_record.json").read_text()))
    model = load_model(folder)
    parameters = sum(p.numel() for p in model.parameters())
    assert 1e6 <= parameters <= 4e6
    assert model.spec.layers >= 6
    assert (folder / "model.safetensors").stat().st_size <= 8e6
    assert len(record.first_losses) == len(record.first_losses_float64) == 200
    # rounding grows; before it has, both are the same training
    apart = [abs(a - b) for a, b in zip(record.first_losses[:100], record.first_losses_float64[:100], strict=True)]
    assert max(apart) < 1e-3
    assert record.losses[-1][1] < record.losses[0][1]
    assert set(record.accuracy[-1]["benchmarks"]) == set(mini.GENERATORS)
    assert (folder / "README.md").is_file()


def test_a_saved_checkpoint_loads_with_the_same_numbers(tmp_path: Path) -> None:
    trainer = trainer_for("llada", tmp_path)
    save_checkpoint(trainer.model, tmp_path / "model")
    batch: Batch = trainer.batches.batch(0)
    torch.testing.assert_close(
        load_model(tmp_path / "model").forward_full(batch.ids), trainer.model.forward_full(batch.ids)
    )


def value_of(expression: str) -> int:
    return eval(expression.replace("/", "//"))


def test_exercises_hold_and_are_the_same_again() -> None:
    for name in ("arithmetic", "calculation", "cloze"):
        for doc in exercises.items(name, 200):
            expression = re.search(r"\d+[-+*/]\d+$", doc["given"])
            assert expression and value_of(expression[0]) == int(doc["result"].strip("$."))
    for doc in (*exercises.items("lines", 50), *exercises.items("worked", 50)):
        lines = [line.partition("=") for line in re.findall(r"\d[^$\n =]*=\d+", doc["result"])]
        assert lines and all(left in doc["given"] and value_of(left) == int(value) for left, _, value in lines)
    for doc in exercises.items("formulas", 100):
        made = re.findall(r"(\d+[-+*/]\d+)=(\d+)", doc["result"])
        assert made and all(value_of(left) == int(value) for left, value in made)
    for doc in exercises.items("chains", 100):
        assert doc["result"].endswith(".") and "How many" not in doc["given"] and "Options" not in doc["given"]
    for doc in exercises.items("copying", 50):
        assert doc["given"] == doc["result"]
    assert exercises.items("copying", 9, 4) == exercises.items("copying", 9, 4) != exercises.items("copying", 9, 5)


def test_steps_of_a_chain_are_right() -> None:
    compass = {"forward": 1j, "right": 1, "backward": -1j, "left": -1}
    turns = {"right": -1j, "around": -1, "left": 1j}
    kinds = set()
    for doc in exercises.items("step", 500):
        given, result = doc["given"], doc["result"]
        if ": " in given:
            things, asked = given.split(": ")
            counts = {word.rstrip("s"): count for count, word in re.findall(r"(an?|two|three|four) (\w+)", things)}
            assert result == str(["a", "two", "three", "four"].index(counts[asked].replace("an", "a")) + 1)
            kinds.add("count")
        elif re.match(r"\(-?\d", given):
            place = complex(*map(int, re.findall(r"-?\d+", given)[:2]))
            facing = re.search(r"facing (\w+)", given)
            way = compass[facing[1]] if facing else 0
            if turn := re.search(r"Turn (\w+)", given):
                way *= turns[turn[1]]
            elif steps := re.search(r"Take (\d+) steps?(?: (\w+))?", given):
                place += int(steps[1]) * (compass[steps[2]] if steps[2] else way)
            end = f", facing {next(name for name, to in compass.items() if to == way)}" if facing else ""
            assert result == f"({place.real:.0f}, {place.imag:.0f}){end}.".replace("-0,", "0,").replace("-0)", "0)")
            kinds.add("turn" if turn else "facing" if facing else "named")
        else:
            assert result == str(eval(given))
            kinds.add("truth")
    assert kinds == {"count", "turn", "facing", "named", "truth"}


def test_exercises_quote_training_items_alone() -> None:
    given = [doc["given"] for name in ("cloze", "formulas", "worked") for doc in exercises.items(name, 2000)]
    whole = [made[1] for text in given if (made := re.match(r"Question: (\w+ has .*\?)\nAnswer: \d", text))]
    problem = re.compile(r"(?:Compute|Simplify|Solve|If|What is)[^?.]*\$[^$?.]*[?.]")
    problems = [made[0] for text in given for made in problem.finditer(text)]
    assert len(whole) > 200 and len(problems) > 200
    assert {split_of(text) for text in [*whole, *problems]} == {"train"}
