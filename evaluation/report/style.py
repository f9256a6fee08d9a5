"""How a method looks and where it stands, the same in every table and plot.

Colours are those of Okabe and Ito (2008, "Color Universal Design"), told apart by every common kind of colour vision;
markers and dashes carry the same distinction in grey.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """Colour, marker, dashes and hatch of a method in plots."""

    colour: str
    marker: str
    line: str | tuple[int, tuple[float, ...]]


STYLES = {
    "full_recompute": Style("#000000", "o", "-"),
    "fast_dllm_prefix": Style("#E69F00", "s", "--"),
    "fast_dllm_dual": Style("#D55E00", "D", "-."),
    "fast_dllm": Style("#D55E00", "D", "-."),
    "d2cache": Style("#56B4E9", "^", ":"),
    "elastic_cache": Style("#009E73", "v", (0, (5, 1, 1, 1, 1, 1))),
    "entropycache": Style("#0072B2", "P", (0, (6, 1))),
}
OTHER = Style("#CC79A7", "X", (0, (1, 1)))  # of a method that this file does not know

# Lines of a sweep, one a value of the other axis: dark to light and by marker.
SERIES = tuple(zip(("#08306b", "#08519c", "#2171b5", "#4292c6", "#6baed6", "#9ecae1"), "osD^vP", strict=True))

TITLES = {
    "full_recompute": "Full recompute",
    "fast_dllm_prefix": "Fast-dLLM (prefix)",
    "fast_dllm_dual": "Fast-dLLM (dual)",
    "fast_dllm": "Fast-dLLM",
    "d2cache": "d2Cache",
    "elastic_cache": "Elastic-Cache",
    "entropycache": "EntropyCache",
}


def style(method: str) -> Style:
    """A method's style, by its name or by a label that begins with its name."""
    return STYLES.get(base(method), OTHER)


def title(method: str) -> str:
    """A method's name as papers write it, with whatever settings its label carries."""
    name = base(method)
    return TITLES.get(name, name) + method[len(name) :]


def base(label: str) -> str:
    """The method's name in a label: "entropycache(tau=0.5)" -> "entropycache"."""
    return label.partition("(")[0]


BENCHMARKS = ("gsm8k", "gsm8k_cot", "math500", "mbpp", "humaneval", "humaneval_instruct", "bbh_cot")


def benchmark_rank(name: str) -> tuple[int, str]:
    """Where a benchmark stands in a table: in the order above, a mini benchmark like its model, then others by name."""
    official = name.removeprefix("mini_")
    return (BENCHMARKS.index(official) if official in BENCHMARKS else len(BENCHMARKS), name)


def rank(method: str) -> tuple[int, str]:
    """Where a method stands in a table: the known ones in the order above, then the others by name."""
    known = list(STYLES)
    name = base(method)
    return (known.index(name) if name in known else len(known), method)
