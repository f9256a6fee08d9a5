"""lm-eval's interface: likelihoods against the direct sum, what a request may ask for, settings by name."""

import itertools
import math
from types import SimpleNamespace

import hydra
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from entropycache import Decoding, EntropyCache
from evaluation.generate import Answerer
from evaluation.lm import DiffusionLM, loglikelihood, masked_likelihood
from evaluation.lm_settings import DECODINGS, METHODS, make_answerer
from tests.conftest import ROOT
from tests.models import FAMILIES, random_model, random_prompt


class Numbers:
    """Ids as text: "3 14 15"."""

    directory = ROOT

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, ids):
        return " ".join(map(str, ids))


def lm(family="llada", *, mc_samples=8, canvas_of_request=True, chat=True, **decoding):
    rule = {"gen_length": 4, "window": "whole"} | decoding
    answerer = Answerer(
        random_model(family), Numbers(), EntropyCache(0.5, 2), Decoding(**rule), chat=chat, bos=False, batch_size=3
    )
    return DiffusionLM(answerer, mc_samples, canvas_of_request)


def asked(kind, *arguments):
    return Instance(kind, {}, arguments, 0)


def by_enumeration(model, prefix, target):
    """Mean and variance of one draw, over every set of masks: l uniform in 1..L, then the set uniform."""
    length, mean, square = len(target), 0.0, 0.0
    for count in range(1, length + 1):
        for mask in itertools.combinations(range(length), count):
            ids = torch.tensor([*prefix, *target])
            ids[[len(prefix) + place for place in mask]] = model.spec.mask_id
            logits = model.forward_full(ids)
            rows = [max(0, len(prefix) + place - model.spec.shift) for place in mask]
            logs = [logits[row].log_softmax(-1)[target[place]].item() for row, place in zip(rows, mask, strict=True)]
            value, chance = sum(logs) * length / count, 1 / length / math.comb(length, count)
            mean, square = mean + chance * value, square + chance * value**2
    return mean, square - mean**2


@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_likelihood_is_the_direct_sum_within_its_monte_carlo_error(family, length):
    model, draws = random_model(family), 400
    prefix, target = random_prompt(model, 5), random_prompt(model, length, seed=1)
    exact, variance = by_enumeration(model, prefix, target)
    error = math.sqrt(variance / draws)
    assert error < abs(exact) / 10
    estimates = [loglikelihood(model, prefix, target, draws, seed, batch_size=50) for seed in (0, 1)]
    assert estimates[0] != estimates[1]
    for estimate in estimates:
        assert abs(estimate - exact) < 3 * error


def test_the_estimate_depends_on_the_seed_and_not_on_the_batch():
    model = random_model("dream")
    prefix, target = random_prompt(model, 5), random_prompt(model, 6, seed=1)
    alone = loglikelihood(model, prefix, target, 10, seed=3)
    assert loglikelihood(model, prefix, target, 10, seed=3, batch_size=4) == pytest.approx(alone, rel=1e-9)
    assert loglikelihood(model, prefix, target, 10, seed=4) != pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_token_is_exact_in_one_pass_and_none_is_certain(family, monkeypatch):
    model = random_model(family)
    prefix = random_prompt(model, 5)
    exact, _ = by_enumeration(model, prefix, [7])
    passes = []
    monkeypatch.setattr("evaluation.lm.masked_likelihood", lambda *a: passes.append(a[3]) or masked_likelihood(*a))
    assert loglikelihood(model, prefix, [7], 128, seed=0) == pytest.approx(exact, rel=1e-9)
    assert passes == [[[0]]]
    assert loglikelihood(model, prefix, [], 128, seed=0) == 0.0


def test_a_continuation_is_scored_from_where_its_context_ends(monkeypatch):
    model = lm()
    scored = []
    monkeypatch.setattr(model, "_estimate", lambda prefix, target: scored.append((prefix, target)) or -1.0)
    model.loglikelihood([asked("loglikelihood", "1 2 ", "3 4"), asked("loglikelihood", "", "5")], disable_tqdm=True)
    assert scored == [([1, 2], [3, 4]), ([], [5])]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_what_greedy_decoding_gives(family):
    model = lm(family, canvas_of_request=False)
    prompt = " ".join(map(str, random_prompt(model.answerer.model, 6)))
    generation = dict(model.answerer.generations([model.answerer.prompt_ids(prompt)]))[0]
    said = generation.tokens.tolist()
    flags = [
        model.loglikelihood([asked("loglikelihood", prompt, " " + model.answerer.tokenizer.decode(ids))], True)[0][1]
        for ids in (said, [*said[:-1], (said[-1] + 1) % 50])
    ]
    assert flags[1] is False
    greedy = DiffusionLM(make_reference(model), 8)
    generation = dict(greedy.answerer.generations([greedy.answerer.prompt_ids(prompt)]))[0]
    text = model.answerer.tokenizer.decode(generation.tokens.tolist())
    assert model.loglikelihood([asked("loglikelihood", prompt, " " + text)], True)[0][1] is True


def make_reference(model):
    from dataclasses import replace

    from baselines import FullRecompute

    return replace(model.answerer, policy=FullRecompute())


def test_a_long_text_is_scored_in_pieces_that_cover_each_token_once(monkeypatch):
    model = lm()
    most = model.answerer.model.spec.max_positions
    ids = [number % 40 for number in range(2 * most + 5)]
    pieces = []
    monkeypatch.setattr(model, "_estimate", lambda prefix, target: pieces.append((prefix, target)) or -2.0)
    (total,) = model.loglikelihood_rolling(
        [asked("loglikelihood_rolling", model.answerer.tokenizer.decode(ids))], disable_tqdm=True
    )
    assert [token for _, target in pieces for token in target] == ids
    assert all(len(prefix) + len(target) <= most and prefix for prefix, target in pieces)
    assert pieces[0][0] == [model.answerer.model.spec.bos_id] and total == -2.0 * len(pieces)


def test_a_request_names_its_stop_strings_its_canvas_and_its_temperature():
    model = lm(temperature=0.0)
    prompt = "1 2 3 4 5"
    kinds = [{}, {"max_gen_toks": 6}, {"until": " "}, {"do_sample": False, "temperature": 5.0}]
    whole, longer, first, greedy = model.generate_until([asked("generate_until", prompt, kind) for kind in kinds], True)
    assert len(model.answerer.tokenizer.encode(longer)) > len(model.answerer.tokenizer.encode(first))
    assert first == whole.split(" ")[0] and greedy == whole
    request = asked("generate_until", prompt, {"do_sample": True, "temperature": 5.0})
    sampled = model.generate_until([request] * 3, disable_tqdm=True)
    assert len(set(sampled)) > 1 and sampled == model.generate_until([request] * 3, disable_tqdm=True)
    fixed = lm(canvas_of_request=False)
    assert fixed.generate_until([asked("generate_until", prompt, {"max_gen_toks": 6})], True) == [whole]


def test_answers_are_cached_one_by_one():
    model = lm()
    kept = []
    model.set_cache_hook(SimpleNamespace(add_partial=lambda kind, arguments, answer: kept.append((kind, answer))))
    answers = model.generate_until([asked("generate_until", f"{n} 2", {}) for n in range(4)], disable_tqdm=True)
    assert sorted(answer for _, answer in kept) == sorted(answers) and kept[0][0] == "generate_until"
    model.loglikelihood([asked("loglikelihood", "1", " 2")], disable_tqdm=True)
    assert kept[-1][0] == "loglikelihood"


def test_the_chat_template_takes_one_user_turn():
    model = lm("dream")
    turns = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "def"}]
    assert model.apply_chat_template(turns).endswith("Q<|im_end|>\n<|im_start|>assistant\ndef")
    assert "{content}" in model.chat_template(True) and model.chat_template(False) == ""
    with pytest.raises(ValueError, match="--fewshot_as_multiturn false puts the shots into it"):
        model.apply_chat_template([*turns, turns[0]])
    with pytest.raises(ValueError, match="has no chat template"):
        lm(chat=False).apply_chat_template(turns)


def composed(**choices):
    with hydra.initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        base = {"model": "tiny_llada", "method": "full_recompute", "benchmark": "gsm8k"}
        return hydra.compose("run", overrides=[f"{key}={value}" for key, value in (base | choices).items()])


def conf_names(group):
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def built(config):
    return hydra.utils.instantiate({key: value for key, value in config.items() if key != "name"})


@pytest.mark.parametrize("name", conf_names("method"))
def test_methods_by_name_are_those_of_the_configuration(name):
    build, settings = METHODS[name]
    ours, theirs = build(**settings), built(composed(method=name).method)
    assert type(ours) is type(theirs) and vars(ours) == vars(theirs)


@pytest.mark.parametrize("name", conf_names("decoding"))
def test_decodings_by_name_are_those_of_the_configuration(name):
    assert Decoding(gen_length=256, **DECODINGS[name]) == built(composed(decoding=name).decoding)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"method": "nonesuch"}, "method 'nonesuch' is unknown; known: full_recompute, entropycache"),
        ({"gamma": 1}, "setting of method entropycache 'gamma' is unknown; known: .*k, .*tau"),
        ({"tau": -2}, "tau -2 must be -1"),
        ({"dtype": "float8"}, "dtype 'float8' is unknown; known: float32"),
        ({"batch_size": "auto"}, "batch_size 'auto' must be a whole number of sequences"),
        ({"gen_length": 100}, "gen_length 96 or 128 would do"),
        ({"pretrained": "/nowhere"}, "/nowhere: no such folder"),
        ({"mc_samples": 0, "pretrained": None}, "pretrained"),
    ],
)
def test_settings_that_are_not_known_are_named(arguments, says):
    arguments = {key: value for key, value in ({"pretrained": "/nowhere"} | arguments).items() if value is not None}
    with pytest.raises(ValueError, match=says):
        get_model("entropycache").create_from_arg_obj(arguments, {"batch_size": None, "device": "cuda:0"})


def test_a_setting_reaches_method_and_decoding(tmp_path):
    from entropycache.models.checkpoint import save_checkpoint

    save_checkpoint(random_model("llada", dtype=torch.float32), tmp_path)
    (tmp_path / "tokenizer.json").write_text(
        '{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,'
        ' "pre_tokenizer": null, "post_processor": null, "decoder": null,'
        ' "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
    )
    answerer = make_answerer(str(tmp_path), tau=0.25, k=3, threshold=0.7, block_length=16, gen_length=64)
    assert (answerer.policy.tau, answerer.policy.k, answerer.bos) == (0.25, 3, True)
    assert (answerer.decoding.threshold, answerer.decoding.block, answerer.decoding.blocks) == (0.7, 16, 4)
    model = DiffusionLM.create_from_arg_string(f"pretrained={tmp_path},method=d2cache,sigma=5.0,mc_samples=7")
    assert model.mc_samples == 7 and model.canvas_of_request
    info = model.get_model_info()
    assert info["method"]["name"] == "D2Cache" and info["method"]["sigma"] == 5.0
    assert info["decoding"]["threshold"] == 0.9
