"""The documentation: its code runs, its links lead somewhere, its site builds without a warning."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from entropycache.models import checkpoint
from evaluation.benchmarks import DEFINITIONS
from evaluation.scorers import SCORERS
from tests import notebook as notebook_module
from tests.conftest import ROOT
from tests.scripts.conftest import own_index  # noqa: F401 (a fixture)

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
FENCE = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    code: str
    line: int


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["language"], m["title"], m["code"], text[: m.start()].count("\n") + 2) for m in FENCE.finditer(text)
    ]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder to work in, whose modules can be imported; what is registered is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    registries = (checkpoint.FAMILIES, checkpoint.MODEL_TYPES, DEFINITIONS, SCORERS)
    before, modules = [dict(registry) for registry in registries], set(sys.modules)
    yield tmp_path
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def execute(page, folder):
    """Do what a reader would: write the blocks that have a file name, run the others in order, commands in a shell of
    their own.
    """
    namespace = {}
    (folder / "scripts").symlink_to(ROOT / "scripts")
    shell = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": ""}
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        if block.title:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, page.name, "exec"), namespace)
        elif block.language == "bash":
            done = subprocess.run(
                ["bash", "-ec", block.code], cwd=folder, env=shell, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{where}: {done.stderr}"
        else:
            pytest.fail(f"{where}: nobody runs {block.language}")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_the_code_on_a_page_runs(page, elsewhere, own_index):  # noqa: F811
    execute(page, elsewhere)


def anchors(page):
    """Anchors of a page's headings, as MkDocs makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page):
    for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target, _, anchor = match["target"].partition("#")
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists() and ".." not in file.parts, f"{page.name}: {match['target']}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {match['target']}"


def test_every_page_is_in_the_navigation():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(next(iter(entry.values())) for entry in nav) == sorted(page.name for page in PAGES)


@pytest.mark.skipif(not importlib.util.find_spec("material"), reason="needs pip install 'entropycache[docs]'")
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # Material's word on its own successor
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert (tmp_path / "site" / "extending" / "index.html").is_file()


def printed(notebook):
    """What a notebook's cells print, entropies aside, whose last digit may be another processor's."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [re.sub(r"entropy [\d.]+", "entropy", "".join(output.get("text", []))) for output in outputs]


def test_the_notebook_runs_and_shows_what_its_cells_give():
    notebook = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] and cell["execution_count"] == count for count, cell in enumerate(cells, 1))
    shown = printed(notebook)  # before `execute` puts others there
    again, names = notebook_module.execute(notebook)
    assert printed(again) == shown
    assert any("image/png" in output.get("data", {}) for cell in again["cells"] for output in cell.get("outputs", []))
    full, cached = names["generations"].values()
    assert full.rows_computed == full.rows_total and cached.rows_computed < cached.rows_total
