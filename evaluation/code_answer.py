"""From a model's text to a program: the code in an answer, whatever the answer's form. Pure functions, nothing is run.

An answer is one of two things. Either it *defines the entry point*: then the code around the definition is the answer,
put behind the part of the prompt that stands before the prompt's own signature (its imports and helpers), so that no
signature is doubled. Or it is the *body* that continues the prompt: then it is put behind the whole prompt, and cut
where lm-eval's humaneval stops (`BODY_STOPS`); these strings would destroy an answer of the first kind, so only a body
is cut at them.

Where code fences are used, the first fenced block that defines the entry point with a body of its own is the answer: a
usage example beside it, or a later variant of the same function, does not count. A block that only repeats the prompt
has no body of its own. A fence that is never closed runs to the end of the text.
"""

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

BODY_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
CODE_LINE = re.compile(r"(?:import|from|def|async|class|if|for|while|try|with)\b|@|#|[A-Za-z_][\w.\[\], ]*\s*[:=]")


def answer_program(text: str, entry_point: str, prompt: str = "") -> str:
    """The program that `text` answers `prompt` with: source that defines `entry_point`, or does not compile."""
    outside, blocks = split_fences(text)
    defining = [code for part in (*blocks, outside) if (code := _defining_code(part, entry_point)) is not None]
    for code in defining:
        if _has_body(code, entry_point):
            return _join(_before_signature(prompt, entry_point), code)
    for part in (outside, *blocks):
        if (program := _continued(prompt, part, entry_point)) is not None:
            return program
    broken = _join(_before_signature(prompt, entry_point), defining[0]) if defining else None
    return broken or _join(prompt, outside if outside.strip() or not blocks else blocks[0])


def split_fences(text: str) -> tuple[str, list[str]]:
    """The text before the first code fence, and the content of each fenced block without its language tag.

    A fence tagged as Python opens a block even where the one before was never closed.
    """
    outside, *pieces = re.split("`{3,}", text)
    blocks, inside = [], False
    for piece in pieces:
        tagged = re.match(r"[ \t]*(?:python|py)[\d.]*(?!\w)", piece, re.IGNORECASE)
        inside = bool(tagged) or not inside
        if inside:
            content = (
                piece[tagged.end() :].lstrip(" \t") if tagged else re.sub(r"\A[ \t]*[\w+.#-]*[ \t]*(?=\n)", "", piece)
            )
            blocks.append(content.strip("\n"))
    return outside, [block for block in blocks if block.strip()]


def mbpp_entry_point(tests: Sequence[str]) -> str:
    """The function that MBPP's asserts call: the first called name that is no builtin, or else the first called name.

    One item's function is named after a builtin (126 asks for a `sum`). ValueError if nothing is called by name.
    """
    nodes = [node for test in tests for node in ast.walk(ast.parse(test))]
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    if not called:
        raise ValueError(f"no assert calls a function: {tests[0]!r}")
    return next((name for name in called if not hasattr(builtins, name)), called[0])


def mbpp_answer(doc: Mapping[str, Any], text: str) -> str:
    """The source that an answer to an MBPP item amounts to."""
    return answer_program(text.replace("[BEGIN]", ""), mbpp_entry_point(doc["test_list"]))


def humaneval_answer(doc: Mapping[str, Any], text: str) -> str:
    """The source that an answer to a HumanEval item amounts to."""
    return answer_program(text, doc["entry_point"], doc["prompt"])


def humaneval_instruct_answer(doc: Mapping[str, Any], text: str) -> str:
    """The same where the task began the answer: a fence is open and the prompt stands in it."""
    body = split_fences(text)[0]
    begun = None if _defining_code(body, doc["entry_point"]) else _continued(doc["prompt"], body, doc["entry_point"])
    return begun or humaneval_answer(doc, text)


def mbpp_gold(doc: Mapping[str, Any]) -> str:
    """The text of a right answer, in the form of the prompt's solved examples."""
    return f"{doc['code']}\n[DONE]"


def humaneval_gold(doc: Mapping[str, Any]) -> str:
    """The text of a right answer that continues the prompt."""
    return str(doc["canonical_solution"])


def humaneval_instruct_gold(doc: Mapping[str, Any]) -> str:
    """The same, which closes the fence that the task opened."""
    return f"{doc['canonical_solution']}```"


def _defining_code(text: str, entry_point: str) -> str | None:
    """The longest run of lines around the definition of `entry_point` that compiles, None if `text` does not define it.

    Runs start and end at unindented lines, so that prose on either side falls away and nothing inside a function does.
    Where no run compiles, everything from the first line of code on: the answer is wrong, and its error will say how.
    """
    definition = re.compile(rf"^(?:async\s+)?(?:def|class)\s+{entry_point}\b|^{entry_point}\s*=", re.MULTILINE)
    if not definition.search(text):
        text = textwrap.dedent(text)
    defined = definition.search(text)
    if not defined:
        return None
    edges = list(_unindented(text))
    starts = [at for at in edges if at <= defined.start() and CODE_LINE.match(text, at)]
    for start in starts:
        for end in (len(text), *(at for at in reversed(edges) if at > defined.start())):
            if tree := _compiled(text[start:end]):
                return _without_prose(text[start:end], tree)
    return text[starts[0] if starts else defined.start() :]


def _without_prose(code: str, tree: ast.Module) -> str:
    """`code` without top-level words that happen to be Python, such as a heading "Explanation" or "Note: linear"."""
    lines = code.splitlines()
    for node in tree.body:
        word = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call | ast.Constant | ast.Await)
        if word or (isinstance(node, ast.AnnAssign) and node.value is None):
            for row in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[row] = ""
    return "\n".join(lines)


def _continued(prompt: str, body: str, entry_point: str) -> str | None:
    """`prompt` followed by `body`, None if that gives the entry point no body. Lost indentation is put back."""
    body = body.strip("\n")
    stops = [at for stop in BODY_STOPS if (at := body.find(stop)) > 0]
    body = body[: min(stops, default=len(body))]
    for shaped in (body, f"    {body}", textwrap.indent(body, "    ")):
        for end in (len(shaped), *reversed(list(_unindented(shaped)))):
            program = _join(prompt, shaped[:end])
            if _has_body(program, entry_point):
                return program
    return None


def _unindented(text: str) -> Iterator[int]:
    return (match.start() for match in re.finditer(r"^(?=\S)", text, re.MULTILINE))


def _compiled(code: str) -> ast.Module | None:
    """The syntax tree of `code` if it compiles: `return` outside a function parses, but does not compile."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(code, "answer", "exec", dont_inherit=True)
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None


def _has_body(code: str, entry_point: str) -> bool:
    """Whether `code` compiles and defines the entry point with a body that does something."""
    tree = _compiled(code)
    return any(_defines(node, entry_point) for node in tree.body) if tree else False


def _defines(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == name and not all(map(_idle, node.body))
        case ast.ClassDef():
            return node.name == name
        case ast.Assign():
            return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return False


def _idle(line: ast.stmt) -> bool:
    """A docstring, a stray word, `pass` or an import: what a prompt may hold already (HumanEval/115 imports inside)."""
    if isinstance(line, ast.Expr):
        return not isinstance(line.value, ast.Call | ast.Await | ast.Yield | ast.YieldFrom)
    return isinstance(line, ast.Pass | ast.Import | ast.ImportFrom)


def _before_signature(prompt: str, entry_point: str) -> str:
    signature = re.search(rf"^(?:async\s+)?def\s+{entry_point}\b", prompt, re.MULTILINE)
    return prompt[: signature.start()] if signature else prompt


def _join(head: str, tail: str) -> str:
    """`head` and `tail` on lines of their own; future imports, which must come first, come first."""
    code = f"{head}{'' if not head or head.endswith(chr(10)) else chr(10)}{tail}"
    future = re.findall(r"^from __future__ import .*$", code, re.MULTILINE)
    return (
        "\n".join([*future, re.sub(r"^from __future__ import .*$", "", code, flags=re.MULTILINE)]) if future else code
    )
