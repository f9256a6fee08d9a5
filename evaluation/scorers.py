"""How each benchmark's answers are judged.

A scorer gives an answer several named verdicts side by side and says which one the tables show. What it extracted is
kept with every verdict, so that a person can see why an answer counted. Needs neither torch nor lm-eval.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from evaluation import code_answer, execution, extract
from evaluation.grading import math_grader

Doc = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """Whether one rule holds the answer right, what it extracted (None: nothing found), and a reason if one helps."""

    correct: bool
    extracted: str | None
    note: str | None = None


@dataclass(frozen=True)
class Score:
    """One answer's verdicts by name."""

    verdicts: Mapping[str, Verdict]

    def __getitem__(self, name: str) -> Verdict:
        return self.verdicts[name]

    def as_numbers(self) -> dict[str, float]:
        return {name: float(verdict.correct) for name, verdict in self.verdicts.items()}


@dataclass(frozen=True)
class CodeOptions:
    """How code is run: not at all unless allowed. `timeout` in seconds of processor time a program."""

    allow_code_execution: bool = False
    workers: int = 2
    timeout: float = 3.0


@dataclass(frozen=True)
class Judged:
    """Scores in the order of the answers, and what else belongs on record."""

    scores: list[Score]
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scorer:
    """The text is cut at `until`, then `judge` gives the verdicts `names`, of which tables show `shown`."""

    names: tuple[str, ...]
    shown: str
    until: tuple[str, ...]
    judge: Callable[[Doc, str], Mapping[str, Verdict]]
    runs_code: bool = False

    def __call__(self, doc: Doc, text: str) -> Score:
        """One answer's score."""
        return Score(self.judge(doc, extract.cut(text, self.until)))

    def score_all(self, docs: Sequence[Doc], texts: Sequence[str], options: CodeOptions | None = None) -> Judged:
        """The scores of many answers; `options` matter to benchmarks that run code."""
        return Judged([self(doc, text) for doc, text in zip(docs, texts, strict=True)])


@dataclass(frozen=True)
class CodeScorer:
    """Answers are assembled to programs, which are run against the item's tests in a sandbox.

    `assemble` gives an answer's source, `program` the job for the sandbox, `gold` the text of a right answer. Before
    any score, the benchmark's own solutions take the same way as canaries.
    """

    until: tuple[str, ...]
    assemble: Callable[[Doc, str], str]
    program: Callable[[Doc, str, str | None], execution.Program]
    gold: Callable[[Doc], str]
    names: tuple[str, ...] = ("pass@1",)
    shown: str = "pass@1"
    runs_code: bool = True

    def __call__(self, doc: Doc, text: str, options: CodeOptions | None = None) -> Score:
        """One answer's score. Raises execution.ExecutionError unless `options` allow code to be run."""
        return self._run([doc], [text], options or CodeOptions())[0][0]

    def score_all(self, docs: Sequence[Doc], texts: Sequence[str], options: CodeOptions | None = None) -> Judged:
        """The scores of many answers, with the isolation in force, the canaries' rates and a warning if one is due.

        Raises execution.ExecutionError unless `options` allow code to be run, or if a canary is judged wrong.
        """
        options = options or CodeOptions()
        canaries = tuple(self.job(doc, self.gold(doc), str(i)) for i, doc in enumerate((*docs, *docs)[:CANARIES]))
        rates = canary_rates(canaries, options.workers, options.allow_code_execution)
        scores, results = self._run(docs, texts, options)
        record = {"isolation": execution.isolation(), "canaries": rates, "warning": execution.suspicion(results)}
        return Judged(scores, record)

    def job(self, doc: Doc, text: str, id: str | None = None) -> execution.Program:
        """The program that an answer amounts to, with the item's tests."""
        return self.program(doc, self.assemble(doc, extract.cut(text, self.until)), id)

    def _run(
        self, docs: Sequence[Doc], texts: Sequence[str], options: CodeOptions
    ) -> tuple[list[Score], list[execution.Result]]:
        programs = [self.job(doc, text) for doc, text in zip(docs, texts, strict=True)]
        results = execution.run_programs(
            programs,
            workers=options.workers,
            timeout=options.timeout,
            allow_code_execution=options.allow_code_execution,
        )
        verdicts = [
            Verdict(result.passed, program.source, None if result.passed else f"{result.status}: {result.detail}")
            for program, result in zip(programs, results, strict=True)
        ]
        return [Score({self.shown: verdict}) for verdict in verdicts], results


CANARIES = 8  # solutions judged before any score, three times over


@cache
def canary_rates(canaries: tuple[execution.Program, ...], workers: int, allow_code_execution: bool) -> dict[str, float]:
    """As `execution.check_canaries`; a process that judged them right once does not judge the same ones again."""
    return execution.check_canaries(canaries, workers=workers, allow_code_execution=allow_code_execution)


def number_judge(strict: Callable[[str], str | None]) -> Callable[[Doc, str], Mapping[str, Verdict]]:
    """GSM8K's two verdicts: the number where the prompt's form puts it, and the last number of the text."""

    def judge(doc: Doc, text: str) -> Mapping[str, Verdict]:
        gold = extract.marked_number(doc["answer"]) or extract.stated_number(doc["answer"])
        found = {"strict": strict(text), "flexible": extract.last_number(text)}
        return {name: Verdict(extract.same_number(number, gold), number) for name, number in found.items()}

    return judge


def math_judge(doc: Doc, text: str) -> Mapping[str, Verdict]:
    """Equal to the gold answer by math-verify, and by spelling. An answer of the same spelling is equal."""
    gold, answer = str(doc["answer"]), extract.math_answer(text)
    if answer is None:
        return {name: Verdict(False, None, "no answer found") for name in ("math_verify", "exact_match")}
    grade = math_grader().grade(gold, answer)
    exact = Verdict(extract.plain_math(answer) == extract.plain_math(gold), answer)
    return {"math_verify": Verdict(grade.correct, answer, grade.note), "exact_match": exact}


def bbh_judge(doc: Doc, text: str) -> Mapping[str, Verdict]:
    """Word for word what follows "the answer is"; and more loosely, by what looks like an answer there or anywhere."""
    gold = str(doc["target"]).strip()
    strict = extract.stated_answer(text)
    loose = extract.answer_like(strict, gold, which=0) or strict if strict else extract.answer_like(text, gold)
    return {
        "strict": Verdict(strict == gold, strict),
        "flexible": Verdict(extract.same_words(loose, gold), loose),
    }


SCORERS: dict[str, Scorer | CodeScorer] = {
    "gsm8k": Scorer(("strict", "flexible"), "strict", ("Question:",), number_judge(extract.marked_number)),
    "gsm8k_cot": Scorer(("strict", "flexible"), "strict", ("Q:",), number_judge(extract.stated_number)),
    "math500": Scorer(("math_verify", "exact_match"), "math_verify", ("Problem:",), math_judge),
    "mbpp": CodeScorer(("[DONE]",), code_answer.mbpp_answer, execution.mbpp_program, code_answer.mbpp_gold),
    "humaneval": CodeScorer((), code_answer.humaneval_answer, execution.human_eval_program, code_answer.humaneval_gold),
    "humaneval_instruct": CodeScorer(
        (), code_answer.humaneval_instruct_answer, execution.human_eval_program, code_answer.humaneval_instruct_gold
    ),
    # lm-eval also cuts at "Q" and at blank lines, which ends a chain of thought at the first queen or paragraph
    "bbh_cot": Scorer(("strict", "flexible"), "strict", ("\nQ:",), bbh_judge),
}
SCORERS |= {f"mini_{name}": scorer for name, scorer in SCORERS.items() if name != "humaneval_instruct"}
