"""The diffusion language model as lm-eval sees it: a shell around `Answerer`, no logic of its own but the likelihood
estimate. Importing this module registers it as lm-eval's model "entropycache".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
from tqdm import tqdm

from baselines import FullRecompute
from entropycache import Decoding, generate
from entropycache.models.transformer import Transformer
from evaluation.extract import cut
from evaluation.generate import Answerer
from evaluation.lm_settings import make_answerer


@register_model("entropycache")
class DiffusionLM(LM):
    """lm-eval's interface to a masked-diffusion model with a cache policy.

    Generation decodes the whole canvas and cuts the text at the request's stop strings, as published harnesses for
    these models do. The canvas is the decoding's `gen_length`, or with `canvas_of_request` what the request's
    `max_gen_toks` says where it says anything. A request's `temperature` counts where it also says `do_sample`.
    """

    def __init__(self, answerer: Answerer, mc_samples: int = 128, canvas_of_request: bool = False) -> None:
        super().__init__()
        if mc_samples < 1:
            raise ValueError(f"mc_samples {mc_samples} must be 1 or above")
        self.answerer, self.mc_samples, self.canvas_of_request = answerer, mc_samples, canvas_of_request

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> Self:
        """The model of `--model_args`: `pretrained`, and any of `make_answerer`'s settings; `mc_samples` for
        likelihoods. lm-eval's own `--batch_size` and `--device` count where the arguments do not name them; its
        `cuda:0`, which it says unasked, is the CPU where there is no such device.

        Raises ValueError for a setting that is not known, naming those that are.
        """
        given = {key: value for key, value in (additional_config or {}).items() if value is not None}
        if str(given.get("device", "")).startswith("cuda") and not torch.cuda.is_available():
            given["device"] = "cpu"
        given |= arg_dict
        if "pretrained" not in given:
            raise ValueError("model_args lack pretrained=<folder, hub id, or the name of a shipped checkpoint>")
        mc_samples, own_canvas = given.pop("mc_samples", 128), "gen_length" in given
        return cls(make_answerer(**given), mc_samples, canvas_of_request=not own_canvas)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> Self:
        """`create_from_arg_obj` of "key=value,key=value"."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval's results file says about the model: its weights' format, method and decoding."""
        answerer = self.answerer
        plain = (bool, int, float, str)
        policy = {name: value for name, value in vars(answerer.policy).items() if isinstance(value, plain)}
        return {
            "model_num_parameters": sum(parameter.numel() for parameter in answerer.model.parameters()),
            "model_dtype": str(answerer.model.dtype).removeprefix("torch."),
            "method": {"name": type(answerer.policy).__name__, **policy},
            "decoding": asdict(answerer.decoding),
            "mc_samples": self.mc_samples,
        }

    @property
    def tokenizer_name(self) -> str:
        return str(self.answerer.tokenizer.directory.name)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template as lm-eval's results file shows it, "" for a model without one."""
        template = self.answerer.chat_template()
        return template("{content}") if template and chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The family's template around one user turn; what an assistant turn begins with is put behind it.

        Raises ValueError where the model has no chat template, or for a history of another shape.
        """
        template = self.answerer.chat_template()
        roles = [turn["role"] for turn in chat_history]
        if template is None:
            raise ValueError(
                "this model has no chat template: set model.chat=true, or evaluate without --apply_chat_template"
            )
        if roles not in (["user"], ["user", "assistant"]):
            raise ValueError(
                f"turns {roles}: only one user turn, with the beginning of an answer or not, is supported; "
                "--fewshot_as_multiturn false puts the shots into it"
            )
        return template(chat_history[0]["content"]) + "".join(turn["content"] for turn in chat_history[1:])

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One answer a request, cut at the request's stop strings."""
        groups: dict[tuple[Decoding, int], list[int]] = {}
        seen: Counter[int] = Counter()
        for index, request in enumerate(requests):
            decoding = self._decoding(request.args[1])
            # lm-eval asks for repeats by passing one request several times: at a temperature each has its own noise
            seed = self.answerer.seed + (seen[id(request)] if decoding.temperature > 0 else 0)
            seen[id(request)] += 1
            groups.setdefault((decoding, seed), []).append(index)
        answers: dict[int, str] = {}
        with tqdm(total=len(requests), desc="generate_until", unit="answer", disable=disable_tqdm or None) as bar:
            for (decoding, seed), indices in groups.items():
                answerer = replace(self.answerer, decoding=decoding, seed=seed)
                prompts = [answerer.prompt_ids(requests[index].args[0]) for index in indices]
                for place, generation in answerer.generations(prompts):
                    request = requests[indices[place]]
                    answers[indices[place]] = answer = cut(answerer.text(generation), stops(request.args[1]))
                    self.cache_hook.add_partial("generate_until", request.args, answer)
                    bar.update()
        return [answers[index] for index in range(len(requests))]

    def _decoding(self, asked: Mapping[str, Any]) -> Decoding:
        """The decoding with what a request asks for."""
        changes: dict[str, Any] = {}
        if self.canvas_of_request and asked.get("max_gen_toks"):
            changes["gen_length"] = int(asked["max_gen_toks"])
        if asked.get("do_sample") and asked.get("temperature"):
            changes["temperature"] = float(asked["temperature"])
        return replace(self.answerer.decoding, **changes) if changes else self.answerer.decoding

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Estimated log-likelihood of each continuation, and whether greedy decoding would give it: one token a step,
        the most confident of all masks, no cache.
        """
        results = []
        for request in tqdm(requests, desc="loglikelihood", disable=disable_tqdm or None):
            prefix, target = self._pair(*request.args)
            result = self._estimate(prefix, target), self._is_greedy(prefix, target)
            self.cache_hook.add_partial("loglikelihood", request.args, result)
            results.append(result)
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Estimated log-likelihood of each whole text, given the fill token; a text longer than the model's positions
        goes in pieces, each given one token of the piece before.
        """
        results = []
        for request in tqdm(requests, desc="loglikelihood_rolling", disable=disable_tqdm or None):
            spec = self.answerer.model.spec
            first = spec.eos_id if spec.bos_id is None else spec.bos_id
            ids = self.answerer.tokenizer.encode(request.args[0])
            windows = get_rolling_token_windows(ids, first, max_seq_len=spec.max_positions - 1, context_len=1)
            result = sum(self._estimate(*pair) for pair in map(make_disjoint_window, windows))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, result)
            results.append(result)
        return results

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of context and continuation, split where the context alone ends; its trailing blanks are the
        continuation's, as in lm-eval's own models.
        """
        kept = context.rstrip()
        prefix = self.answerer.prompt_ids(kept)
        return prefix, self.answerer.prompt_ids(context + continuation)[len(prefix) :]

    def _estimate(self, prefix: Sequence[int], target: Sequence[int]) -> float:
        answerer = self.answerer
        return loglikelihood(answerer.model, prefix, target, self.mc_samples, answerer.seed, answerer.batch_size)

    def _is_greedy(self, prefix: Sequence[int], target: Sequence[int]) -> bool:
        if not target:
            return True
        decoding = Decoding(gen_length=len(target), window="whole")
        return generate(self.answerer.model, list(prefix), FullRecompute(), decoding).tokens.tolist() == list(target)


def stops(asked: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings of a request."""
    until = asked.get("until") or ()
    return (until,) if isinstance(until, str) else tuple(until)


@torch.inference_mode()
def loglikelihood(
    model: Transformer, prefix: Sequence[int], target: Sequence[int], samples: int, seed: int, batch_size: int = 1
) -> float:
    """LLaDA's Monte-Carlo estimate of log p(target | prefix), in nats (arXiv 2502.09992, eq. 6).

    Draw l uniformly from 1..L, mask l of the L target tokens uniformly, and weigh the masked tokens' log-probabilities
    by L/l; the mean over `samples` draws (from `seed`) estimates a lower bound of the log-likelihood. `batch_size`
    draws share a forward pass. An empty target has log-likelihood 0; a target of one token leaves nothing to draw.
    """
    if not target:
        return 0.0
    generator = torch.Generator().manual_seed(seed)
    draws = [draw(len(target), generator) for _ in range(1 if len(target) == 1 else samples)]
    parts = [draws[start : start + batch_size] for start in range(0, len(draws), batch_size)]
    return sum(sum(masked_likelihood(model, prefix, target, part)) for part in parts) / len(draws)


def draw(length: int, generator: torch.Generator) -> list[int]:
    """The places to mask, of 1..length many."""
    count = int(torch.randint(1, length + 1, (), generator=generator))
    return torch.randperm(length, generator=generator)[:count].tolist()


@torch.inference_mode()
def masked_likelihood(
    model: Transformer, prefix: Sequence[int], target: Sequence[int], masks: Iterable[Sequence[int]]
) -> list[float]:
    """For each set of masked places: the masked tokens' summed log-probability given all others, times L/l."""
    answer, places = torch.tensor(target), [torch.tensor(mask) for mask in masks]
    noisy = torch.tensor([*prefix, *target]).repeat(len(places), 1)
    for row, place in zip(noisy, places, strict=True):
        row[len(prefix) + place] = model.spec.mask_id
    sources = model.sources(torch.arange(len(prefix), noisy.shape[1]))
    logits = model.forward_full(noisy)[:, sources]
    wide = torch.promote_types(logits.dtype, torch.float32)
    weighed = []
    for row, place in zip(logits, places, strict=True):
        chosen = row[place].to(wide).log_softmax(dim=-1).gather(1, answer[place, None].to(row.device))
        weighed.append(chosen.sum().item() * len(target) / len(place))
    return weighed
