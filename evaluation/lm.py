"""The diffusion language model as lm-eval sees it: a shell around `Answerer`, no logic of its own but the likelihood
estimate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from entropycache.models.transformer import Transformer
from evaluation.extract import cut
from evaluation.generate import Answerer


class DiffusionLM(LM):
    """lm-eval's interface to a masked-diffusion model with a cache policy.

    Generation decodes the whole canvas and cuts the text at the request's stop strings, as published harnesses for
    these models do; a request's `max_gen_toks` is left aside, since the canvas is the decoding's `gen_length`.
    """

    def __init__(self, answerer: Answerer, mc_samples: int = 128) -> None:
        super().__init__()
        self.answerer, self.mc_samples = answerer, mc_samples

    @property
    def tokenizer_name(self) -> str:
        return str(self.answerer.tokenizer.directory.name)

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
            raise ValueError(f"turns {roles}: only one user turn, with the beginning of an answer or not, is supported")
        return template(chat_history[0]["content"]) + "".join(turn["content"] for turn in chat_history[1:])

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One answer a request, cut at the request's stop strings."""
        prompts = [self.answerer.prompt_ids(request.args[0]) for request in requests]
        answers: dict[int, str] = {}
        for index, generation in self.answerer.generations(prompts):
            until = requests[index].args[1].get("until") or ()
            answers[index] = cut(self.answerer.text(generation), (until,) if isinstance(until, str) else tuple(until))
        return [answers[index] for index in range(len(requests))]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Estimated log-likelihood of each continuation, and whether greedy decoding of it in one step would give
        it.
        """
        results = []
        for request in requests:
            context, continuation = request.args
            prefix = self.answerer.prompt_ids(context)
            target = self.answerer.prompt_ids(context + continuation)[len(prefix) :]
            results.append(self._likelihood(prefix, target))
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Estimated log-likelihood of each whole text, given BOS where the model has one."""
        return [
            self._likelihood(self.answerer.prompt_ids(""), self.answerer.tokenizer.encode(r.args[0]))[0]
            for r in requests
        ]

    def _likelihood(self, prefix: Sequence[int], target: Sequence[int]) -> tuple[float, bool]:
        model = self.answerer.model
        estimate = loglikelihood(model, prefix, target, self.mc_samples, self.answerer.seed)
        canvas = torch.tensor([*prefix, *[model.spec.mask_id] * len(target)])
        greedy = predictions(model, canvas, len(prefix)).argmax(dim=-1).tolist() == list(target)
        return estimate, greedy


@torch.inference_mode()
def loglikelihood(model: Transformer, prefix: Sequence[int], target: Sequence[int], samples: int, seed: int) -> float:
    """LLaDA's Monte-Carlo estimate of log p(target | prefix), in nats (arXiv 2502.09992, eq. 6).

    Draw l uniformly from 1..L, mask l of the L target tokens uniformly, and weigh the masked tokens' log-probabilities
    by L/l; the mean over `samples` draws (from `seed`) estimates a lower bound of the log-likelihood. An empty target
    has log-likelihood 0.
    """
    if not target:
        return 0.0
    generator = torch.Generator().manual_seed(seed)
    ids, answer = torch.tensor([*prefix, *target]), torch.tensor(target)
    total = 0.0
    for _ in range(samples):
        count = int(torch.randint(1, len(target) + 1, (), generator=generator))
        hidden = torch.randperm(len(target), generator=generator)[:count]
        noisy = ids.clone()
        noisy[len(prefix) + hidden] = model.spec.mask_id
        logits = predictions(model, noisy, len(prefix))[hidden]
        chosen = logits.float().log_softmax(dim=-1).gather(1, answer[hidden, None].to(logits.device))
        total += chosen.sum().item() * len(target) / count
    return total / samples


@torch.inference_mode()
def predictions(model: Transformer, ids: torch.Tensor, first: int) -> torch.Tensor:
    """Logits for the tokens of rows `first` and after, each from the row that the family reads it from, [rows, v]."""
    sources = model.sources(torch.arange(first, ids.numel()))
    logits: torch.Tensor = model.forward_full(ids)[sources]
    return logits
