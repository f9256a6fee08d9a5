"""Prompt text taken from lm-eval's own task files, read as data.

Some of lm-eval's task modules do things when imported: `mbpp/utils.py` downloads a metric and runs code,
`minerva_math/utils.py` insists on an antlr4 runtime that Hydra cannot live with. So nothing is imported: YAML is
loaded with its functions left unresolved, and a sample list is read from the module's syntax tree.
"""

import ast
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.tasks._yaml_loader import load_yaml

TASKS = Path(lm_eval.tasks.__file__).parent
PROMPT_KEYS = ("description", "doc_to_text", "doc_to_target", "target_delimiter", "fewshot_delimiter", "gen_prefix")


def prompt_config(file: str) -> dict[str, Any]:
    """The prompt's templates in `file` (relative to lm-eval's tasks), and its listed few-shot samples if it has any."""
    config = load_yaml(TASKS / file, resolve_func=False)
    prompt = {key: config[key] for key in PROMPT_KEYS if key in config}
    samples = config.get("fewshot_config", {}).get("samples")
    return prompt | ({"samples": samples} if isinstance(samples, list) else {})


def literal_samples(file: str, function: str) -> list[dict[str, Any]]:
    """The list of few-shot samples that `function` in the module `file` returns, without running the module."""
    for node in ast.parse((TASKS / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            returned = node.body[-1]
            assert isinstance(returned, ast.Return) and returned.value is not None
            return list(ast.literal_eval(returned.value))
    raise ValueError(f"lm-eval's {file} has no function {function}; this project reads lm-eval 0.4.13")
