"""The report as one self-contained page: no network, no library. Tables stand in the HTML; the script sorts them."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd
import yaml

from evaluation.report.decoding_picture import Trace, page_data
from evaluation.report.entries import Entry
from evaluation.report.formats import is_numeric
from evaluation.report.runs import Run
from evaluation.report.style import base, style

HERE = Path(__file__).parent
WIDE = 60  # characters from which a cell takes a line of its own on a narrow screen
FILTERS = ("model", "benchmark", "method", "decoding")


def section(name: str, heading: str, caption: str, body: str, kind: str = "") -> str:
    """A section with its heading."""
    said = f'<p class="caption">{escape(caption)}</p>' if caption else ""
    return f'<section id="{name}" class="{kind}"><h2>{escape(heading)}</h2>{said}\n{body}</section>\n'


def table_section(name: str, heading: str, caption: str, shown: pd.DataFrame, entries: Sequence[Entry] = ()) -> str:
    """A table that sorts and filters. With `entries`, one a row, each row opens on how it was run."""
    numeric = [is_numeric([str(value) for value in shown[column]]) for column in shown.columns]
    heads = "".join(
        f'<th scope="col"{_num(right)}><button type="button">{escape(str(column))}</button></th>'
        for column, right in zip(shown.columns, numeric, strict=True)
    )
    opener = "<th></th>" if entries else ""
    rows = []
    for place, values in enumerate(shown.itertuples(index=False)):
        entry = entries[place] if entries else None
        cells = "".join(
            _cell(str(column), str(value), right)
            for column, value, right in zip(shown.columns, values, numeric, strict=True)
        )
        button = '<td class="open"><button type="button" aria-expanded="false" title="how it was run">▸</button></td>'
        tags = dict(zip(shown.columns, map(str, values), strict=True))
        rows.append(f"<tr{_tags(tags, entry)}>{button if entries else ''}{cells}</tr>\n")
    tools = (
        f'<div class="tools"><label>search <input type="search" aria-label="search {escape(heading)}"></label>'
        '<label class="sorting">sort by <select><option value="">–</option></select></label>'
        '<span class="count"></span></div>'
    )
    table = f"<thead><tr>{opener}{heads}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>"
    return section(name, heading, caption, f"{tools}<div class=scroll><table>{table}</table></div>", "table")


def _num(right: bool) -> str:
    return ' class="num"' if right else ""


def _cell(column: str, value: str, right: bool) -> str:
    kinds = [
        kind for kind, holds in (("num", right), ("name", column == "method"), ("wide", len(value) > WIDE)) if holds
    ]
    swatch = f'<i class="swatch" style="background:{style(value).colour}"></i>' if column == "method" else ""
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f'<td{kind} data-label="{escape(column)}">{swatch}{escape(value)}</td>'


def _tags(tags: Mapping[str, str], entry: Entry | None) -> str:
    """What the filters go by, and the runs that the row's details show."""
    found = {f"data-{name}": base(tags[name]) if name == "method" else tags[name] for name in FILTERS if name in tags}
    if entry:
        paths = [run.path for run in (entry.run, entry.timing.run if entry.timing else None) if run]
        found["data-runs"] = " ".join(paths)
    return "".join(f' {name}="{escape(value)}"' for name, value in found.items())


def plots_section(plots: Mapping[str, Path], models: Sequence[str]) -> str:
    """The section of plots."""
    return section("plots", "Plots", "", figures(plots, models))


def figures(plots: Mapping[str, Path], models: Sequence[str]) -> str:
    """Every plot, as an SVG inside the page."""
    drawn = []
    for heading, path in plots.items():
        svg = path.with_suffix(".svg").read_bytes()
        width = re.search(
            rb'<svg[^>]* width="([0-9.]+)pt"', svg
        )  # narrower than 0.8 of this its letters cannot be read
        size = f' style="--width: {0.8 * float(width[1]):.0f}px"' if width else ""
        data = base64.b64encode(svg).decode()
        model = next((f' data-model="{escape(model)}"' for model in models if model in heading), "")
        image = f'<img{size} alt="{escape(heading)}" src="data:image/svg+xml;base64,{data}">'
        drawn.append(
            f"<figure{model}><figcaption>{escape(heading)}</figcaption><div class=scroll>{image}</div></figure>\n"
        )
    return f'<div class="all">{"".join(drawn)}</div>'


def decoding_section(traces: Sequence[Trace]) -> str:
    """The decoding picture with its slider."""
    names = [str(page_data(trace)["title"]) for trace in traces]
    options = "".join(f'<option value="{place}">{escape(name)}</option>' for place, name in enumerate(names))
    key = "".join(
        f'<span class="{kind}">{kind}</span>' for kind in ("masked", "cached", "computed", "candidate", "committed")
    )
    body = f"""<div class="tools"><label>run <select>{options}</select></label></div>
<div class="stage"><canvas aria-label="steps downwards, rows across"></canvas>
<div class="refreshes"></div><div class="edge"></div><div class="now"></div></div>
<div class="steps"><button type="button" class="back" aria-label="one step back">◂</button>
<input type="range" min="0" value="0" aria-label="step">
<button type="button" class="next" aria-label="one step on">▸</button>
<button type="button" class="play">play</button></div>
<p class="said" aria-live="polite"></p><div class="key">{key}</div><div class="tokens"></div>
<details><summary>the whole answer</summary><pre class="answer"></pre></details>
"""
    caption = (
        "Steps downwards, rows across: the prompt up to the dashed line, then the canvas. ▸ marks steps that refresh. "
        "A row is computed in a step or read from the cache; candidates are the rows that may be decided in it."
    )
    return section("decoding", "One sample, step by step", caption, body)


def list_section(name: str, heading: str, caption: str, lines: Sequence[str]) -> str:
    """A section of sentences."""
    return section(name, heading, caption, "<ul>" + "".join(f"<li>{escape(line)}</li>\n" for line in lines) + "</ul>")


def run_record(run: Run) -> dict[str, str]:
    """How a run was made: its command, settings and manifest."""
    return {
        "command": run.command,
        "config": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True),
        "manifest": json.dumps(run.manifest, indent=1, ensure_ascii=False),
    }


def page(title: str, lead: str, sections: Mapping[str, str], entries: Sequence[Entry], traces: Sequence[Trace]) -> str:
    """The page's HTML.

    Args:
        title, lead: heading and the line under it.
        sections: by the name that the navigation shows.
        entries: the rows of all tables, for the filters and for what a row's details show.
        traces: what `decoding_section` was made of.
    """
    runs = {run.path: run for e in entries for run in (e.run, e.timing.run if e.timing else None) if run}
    names = {
        "model": [entry.model for entry in entries],
        "benchmark": [entry.benchmark for entry in entries],
        "method": [base(entry.method) for entry in entries],
    }
    choices = "".join(
        f'<label>{name} <select name="{name}"><option value="">all</option>'
        + "".join(f"<option>{escape(value)}</option>" for value in dict.fromkeys(values))
        + "</select></label>\n"
        for name, values in names.items()
    )
    nav = "".join(f'<a href="#{body.split(chr(34))[1]}">{escape(name)}</a>' for name, body in sections.items())
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        lead=escape(lead),
        nav=nav,
        choices=choices,
        sections="".join(sections.values()),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
        runs=_json({path: run_record(runs[path]) for path in sorted(runs)}),
        traces=_json([page_data(trace) for trace in traces]),
    )


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
