"""The page in a browser: it loads without an error, sorts, filters, opens rows and walks through a decoding.

One headless Chromium loads the page in two frames, 400 and 1600 pixels wide. A script at the page's end does what a
reader does and reports what it sees.
"""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from evaluation.report import ReportPaths, write_report
from tests.evaluation.synthetic_runs import (
    FULL,
    ONE_TOKEN,
    THRESHOLD,
    config,
    entropy_cache,
    write_paper_table,
    write_run,
    write_speed,
)

WIDTHS = (400, 1600)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

WATCH = """<script>
const troubles = [];
addEventListener("error", (event) => troubles.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => troubles.push("policy: " + event.blockedURI));
console.error = (...words) => troubles.push(words.join(" "));
</script>"""

ACT = """<script>
const seen = {};
const change = (element, value, name = "change") => {
  element.value = value;
  element.dispatchEvent(new Event(name, { bubbles: true }));
};
const rows = () => all("#main_table tbody tr").filter((row) => row.getClientRects().length);
const column = (name) => all("#main_table th").findIndex((head) => head.textContent === name);
const texts = (name) => rows().map((row) => row.cells[column(name)].textContent);
function look() {
  seen.width = innerWidth;
  seen.overflow = document.documentElement.scrollWidth - innerWidth;
  const cells = all("td, figcaption, .caption, label, .said");
  seen.smallest = Math.min(...cells.map((cell) => parseFloat(getComputedStyle(cell).fontSize)));
  const fetched = performance.getEntriesByType("resource").map((entry) => entry.name);
  seen.fetched = fetched.filter((name) => !name.startsWith("data:"));
  seen.images = all("figure img").map((image) => image.naturalWidth > 0);
  seen.sections = all("section").map((section) => section.id);

  const head = all("#main_table th")[column("speedup")];
  head.querySelector("button").click();
  seen.down = texts("speedup");
  seen.sorted = head.getAttribute("aria-sort");
  head.querySelector("button").click();
  seen.up = texts("speedup");

  const form = document.getElementById("choose");
  seen.everything = rows().length;
  change(form.elements.method, "entropycache");
  change(form.elements.model, "tiny_llada");
  seen.methods = texts("method");
  seen.models = texts("model");
  seen.count = document.querySelector("#main_table .count").textContent;
  seen.plots = all("figure").filter((figure) => !figure.hidden).map((figure) => figure.dataset.model);
  form.elements.method.value = form.elements.model.value = "";
  filter();
  change(document.querySelector("#main_table input[type=search]"), "math500 dual", "input");
  seen.searched = rows().map((row) => row.textContent);
  change(document.querySelector("#main_table input[type=search]"), "", "input");
  seen.afterwards = rows().length;

  const opener = rows().find((row) => row.dataset.runs.includes(" ")).querySelector("td.open button");
  opener.click();
  const detail = document.querySelector("#main_table tr.detail");
  seen.commands = all(".command", detail).map((pre) => pre.textContent);
  seen.manifest = detail.textContent.includes("prompts_sha256");
  seen.expanded = opener.getAttribute("aria-expanded");
  opener.click();
  seen.closed = document.querySelector("#main_table tr.detail") === null;

  const slider = document.querySelector("#decoding input[type=range]");
  const said = () => document.querySelector("#decoding .said").textContent;
  const known = () => all("#decoding .tokens span").filter((cell) => cell.textContent !== "·").length;
  change(document.querySelector("#decoding select"), traces.length - 1);
  seen.steps = [];
  for (const step of [0, 1, 4, Number(slider.max)]) {
    change(slider, step, "input");
    seen.steps.push([said(), known(), document.querySelector("#decoding .now").style.top]);
  }
  document.querySelector("#decoding .back").click();
  seen.back = said();
  seen.marks = all("#decoding .refreshes i").length;
  const canvas = document.querySelector("#decoding canvas");
  const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const pixel = (row, step) => [...image.data.slice(4 * (step * image.width + row)).slice(0, 4)];
  seen.pixels = { committed: pixel(24, 0), cached: pixel(0, 1), computed: pixel(0, 4), candidate: pixel(39, 1) };
  seen.troubles = troubles;
  parent.postMessage(JSON.stringify(seen), "*");
}
addEventListener("load", () => setTimeout(look, 50));
</script>"""

FRAMES = """<!doctype html><body><script>
addEventListener("message", (event) => document.body.append(Object.assign(document.createElement("pre"), {
  className: "seen", textContent: event.data })));
</script>%s</body>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of two models, one run unfinished."""
    root = tmp_path_factory.mktemp("runs")
    write_paper_table(root, ("tiny_llada",), ("mini_gsm8k", "mini_math500"))
    write_run(root, config("tiny_dream", "mini_gsm8k", entropy_cache(), THRESHOLD), traced=True)
    write_speed(root, "tiny_dream", "mini_gsm8k", [(FULL, ONE_TOKEN), (entropy_cache(), THRESHOLD)])
    write_run(root, config("tiny_llada", "mini_mbpp", FULL, ONE_TOKEN), n=1000, made=600)
    defaults = {"entropycache": {"tau": 0.5, "k": 16}}
    return write_report(root, tmp_path_factory.mktemp("out"), "A report", defaults=defaults)


def read_page(report: ReportPaths, folder: Path) -> dict[int, dict]:
    """What the script saw, by the width of its frame."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"none of the browsers {', '.join(BROWSERS)} is installed")
    html = report.page.read_text(encoding="utf-8")
    html = html.replace("<head>", f"<head>{WATCH}", 1).replace("</body>", f"{ACT}</body>", 1)
    (folder / "page.html").write_text(html, encoding="utf-8")
    frames = "".join(f'<iframe src="page.html" width="{width}" height="900"></iframe>' for width in WIDTHS)
    (folder / "frames.html").write_text(FRAMES % frames, encoding="utf-8")
    flags = ["--headless", "--disable-gpu", "--dump-dom", "--virtual-time-budget=10000", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={folder / 'profile'}", "--disable-background-networking", "--no-first-run"]
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []
    address = (folder / "frames.html").as_uri()
    done = subprocess.run([browser, *flags, address], capture_output=True, text=True, timeout=300, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    found = [
        json.loads(unescape(text)) for text in re.findall(r'<pre class="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    ]
    assert len(found) == len(WIDTHS), done.stdout[-2000:]
    return {one["width"]: one for one in found}


def number(text: str) -> float | None:
    return None if text == "–" else float(text.split("×")[0])


def check_loading(at: dict) -> None:
    """No error, nothing fetched, every plot there, every section there."""
    assert at["troubles"] == [] and at["fetched"] == []
    assert at["images"] and all(at["images"])
    sections = {"main_table", "findings", "plots", "decoding", "accuracy", "decision_overhead", "tau_k_grid"}
    assert sections <= set(at["sections"])


def check_width(at: dict) -> None:
    """Nothing runs over the side, and no letter is smaller than 12 pixels."""
    assert at["overflow"] <= 0 and at["smallest"] >= 12


def check_sorting(at: dict) -> None:
    """Numbers both ways, gaps last."""
    assert at["sorted"] == "descending"
    for texts, reverse in ((at["down"], True), (at["up"], False)):
        values = [value for text in texts if (value := number(text)) is not None]
        assert values == sorted(values, reverse=reverse) and len(values) == 16
        assert texts[16:] == ["–"]


def check_filters(at: dict) -> None:
    """By method and model, and by search; then everything is there again."""
    assert at["everything"] == at["afterwards"] == 17
    assert set(at["methods"]) == {"entropycache"} and set(at["models"]) == {"tiny_llada"}
    assert at["count"] == "2 of 17 rows"
    assert set(at["plots"]) == {"tiny_llada"}
    (found,) = at["searched"]
    assert "mini_math500" in found and "fast_dllm_dual" in found


def check_opening(at: dict) -> None:
    """A row opens on its commands and manifests, and closes."""
    assert at["expanded"] == "true" and at["closed"] and at["manifest"]
    assert any(command.startswith("python scripts/run.py model=") for command in at["commands"])
    assert any(command.startswith("python scripts/speed.py model=") for command in at["commands"])


def check_slider(at: dict) -> None:
    """Sixteen steps of two tokens each, a refresh every fourth."""
    first, second, fifth, _ = (step[0] for step in at["steps"])
    assert first.startswith("Step 1 of 16: refresh · 56 of 56 rows computed, 24 of them in the prompt · 2 committed")
    assert second.startswith("Step 2 of 16 · ") and fifth.startswith("Step 5 of 16: refresh")
    assert [step[1] for step in at["steps"]] == [2, 4, 10, 32]
    assert len({step[2] for step in at["steps"]}) == 4
    assert at["back"].startswith("Step 15 of 16") and at["marks"] == 4


def check_picture(at: dict) -> None:
    """The four states of a row have four colours, the method's among them."""
    assert at["pixels"]["committed"] == [0, 0, 0, 255]
    assert at["pixels"]["candidate"] == [0, 114, 178, 255]
    assert len({tuple(pixel) for pixel in at["pixels"].values()}) == 4


CHECKS = (check_loading, check_width, check_sorting, check_filters, check_opening, check_slider, check_picture)


def test_page_in_a_browser(report, tmp_path):
    seen = read_page(report, tmp_path)
    for width in WIDTHS:
        for check in CHECKS:
            check(seen[width])


def test_page_names_no_address_to_fetch(report):
    text = report.page.read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!data:|#)', text) and "url(" not in text and "@import" not in text


def test_text_from_runs_is_never_markup(tmp_path):
    """Names and answers come from files; whatever they hold stands on the page as text."""
    hostile = config("<b>m</b>", "mini_gsm8k", FULL | {"note": "</script><script>alert(1)</script>"}, ONE_TOKEN)
    write_run(tmp_path / "runs", hostile, traced=True)
    assert "<script>alert" not in write_report(tmp_path / "runs", tmp_path / "out", "<i>t</i>").page.read_text()
    text = (tmp_path / "out" / "index.html").read_text()
    assert "<b>m</b>" not in text and "<i>t</i>" not in text
