"""The direction of imports, read from the sources, and what must import without torch (DESIGN: layout)."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

PACKAGES = ("entropycache", "baselines", "evaluation", "scripts")
MAY_IMPORT = {
    "entropycache": {"entropycache"},
    "baselines": {"entropycache", "baselines"},
    "evaluation": {"entropycache", "baselines", "evaluation"},
    "scripts": set(PACKAGES),
}
ENGINE_LIBRARIES = {"torch", "safetensors", "tokenizers", "transformers", "huggingface_hub", "numpy", "jaxtyping"}
ENGINE_LIBRARIES |= {"packaging"}  # compares versions
CONFIGURATION = {"hydra", "omegaconf"}  # what `cfg` is made of

# Generating, scoring and reporting meet through files: these must work where neither library is installed.
FILES_ALONE = ("score", "extract", "code_answer", "execution", "statistics", "comparison", "store", "runs", "report")
HEAVY = ("torch", "transformers", "lm_eval", "datasets", "hydra", "omegaconf")

SOURCES = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]


def relative(file) -> str:
    return file.relative_to(ROOT).as_posix()


def imported(file) -> Iterator[tuple[str, str]]:
    """Modules that a source imports anywhere, each with the name taken from it ("" for the module itself)."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(file)}:{node.lineno}: relative import; write the whole name"
            yield from ((node.module or "", alias.name) for alias in node.names)


@pytest.mark.parametrize("file", SOURCES, ids=relative)
def test_imports_point_one_way(file):
    package = relative(file).split("/")[0]
    ours, others = set(), set()
    for module, _ in imported(file):
        top = module.split(".")[0]
        (ours if top in {*PACKAGES, "tests"} else others).add(top)
    assert ours <= MAY_IMPORT[package]
    if package == "entropycache":
        assert others <= ENGINE_LIBRARIES | set(sys.stdlib_module_names)
    if package != "scripts":
        assert not others & CONFIGURATION, "only scripts see cfg"


@pytest.mark.parametrize("file", [file for file in SOURCES if relative(file).startswith("entropycache")], ids=relative)
def test_the_engine_takes_tokenizers_alone_from_transformers_and_reads_no_environment(file):
    for module, name in imported(file):
        if module.split(".")[0] == "transformers":
            assert "token" in f"{module}.{name}".lower() or name == "__version__"
        assert (module, name) not in {("os", "environ"), ("os", "getenv")}
    names = {
        node.attr for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute)
    }
    assert not names & {"environ", "getenv"}


def test_scoring_and_reporting_need_neither_torch_nor_lm_eval():
    modules = [
        f"evaluation.{name}"
        for name in FILES_ALONE
        if (ROOT / "evaluation" / f"{name}.py").exists() or (ROOT / "evaluation" / name / "__init__.py").exists()
    ]
    if (ROOT / "evaluation/report").is_dir():
        modules += [f"evaluation.report.{file.stem}" for file in sorted((ROOT / "evaluation/report").glob("[!_]*.py"))]
    blocked = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}import {', '.join(modules)}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
