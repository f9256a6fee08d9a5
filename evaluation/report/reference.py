"""Published figures beside the measured ones. They were had on other hardware and settings, and every table says so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from evaluation.files import StoreError
from evaluation.report.entries import Entry, one_token
from evaluation.report.style import base
from evaluation.report.tables import frame

OTHER = "Published figures were had on other hardware, models of full size and other settings: they stand beside the "
OTHER += "measured ones to compare orders and shares, not values."

# What a claim's quantity is called in the measured tables.
QUANTITIES = {"speedup": "speedup", "speedup, largest": "speedup"}
QUANTITIES |= {"decision overhead": "decision_share", "accuracy, best reported": "accuracy"}


@dataclass(frozen=True)
class Published:
    """Everything under conf/reference: claims, rows of tables, and which of our names they stand beside."""

    claims: tuple[Mapping[str, Any], ...]
    rows: tuple[Mapping[str, Any], ...]
    names: Mapping[str, Mapping[str, Any]]


def read_published(folder: Path | str) -> Published:
    """Reads conf/reference: `names.yaml`, and files of a `source` each, with `claims` or with `columns` and `rows`.

    Raises:
        StoreError: a file cannot be read, or a row is not of the form that its file declares.
    """
    folder = Path(folder)
    claims: list[Mapping[str, Any]] = []
    rows: list[Mapping[str, Any]] = []
    names = _load(folder / "names.yaml")
    for path in sorted(set(folder.glob("*.yaml")) - {folder / "names.yaml"}):
        record = _load(path)
        common = {"source": record.get("source"), "device": record.get("device")}
        claims += [{**common, **claim} for claim in record.get("claims", [])]
        for row in record.get("rows", []):
            if len(row) != len(record["columns"]):
                raise StoreError(f"{path}: the row {row} has not one value for each of {record['columns']}")
            rows.append({**common, **dict(zip(record["columns"], row, strict=True))})
        if not record.get("source"):
            raise StoreError(f"{path} names no source: figures without one are not shown")
    return Published(tuple(claims), tuple(rows), names)


def _load(path: Path) -> dict[str, Any]:
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise StoreError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def beside(published: Published, row: Mapping[str, Any], rows: Sequence[Entry]) -> list[Entry]:
    """The measured rows that a row of a published table stands beside."""
    method = published.names["methods"].get(row["method"], {"ours": [], "one_token": False})
    models, benchmarks = published.names["models"], published.names["benchmarks"]
    return [
        entry
        for entry in rows
        if entry.model in models.get(row["model"], ())
        and entry.benchmark in benchmarks.get(row["benchmark"], ())
        and base(entry.method) in method["ours"]
        and one_token(entry.decoding_config) == method["one_token"]
    ]


def table_rows(published: Published, rows: Sequence[Entry]) -> pd.DataFrame:
    """Published tables beside measured rows, a line for each pair; accuracies as fractions of 1.

    `published_speedup` is the published throughput over that of full recompute in the same published setting.
    """
    setting = ("source", "model", "benchmark", "shots", "gen_length")
    one = {
        tuple(row[key] for key in setting): row["tokens_per_second"]
        for row in published.rows
        if published.names["methods"].get(row["method"], {}).get("one_token")
    }
    figures = dict(zip(map(id, rows), frame(rows).to_dict("records"), strict=True))
    table = []
    for row in published.rows:
        place = tuple(row[key] for key in setting)
        for entry in beside(published, row, rows):
            measured = figures[id(entry)]
            table.append(
                {"model": row["model"], "benchmark": f"{row['benchmark']}, {row['shots']}-shot, {row['gen_length']}"}
                | {"method": row["method"], "device": row["device"]}
                | {
                    "published_accuracy": row["accuracy_percent"] / 100,
                    "published_tokens_per_forward": row["tokens_per_forward"],
                    "published_speedup": row["tokens_per_second"] / one[place] if place in one else None,
                }
                | {"here": f"{entry.model}, {entry.benchmark}, {entry.method}, {entry.decoding}"}
                | {key: measured[key] for key in ("accuracy", "tokens_per_forward", "speedup")}
                | {"source": row["source"]}
            )
    columns = ["model", "benchmark", "method", "device", "published_accuracy", "published_tokens_per_forward"]
    columns += ["published_speedup", "here", "accuracy", "tokens_per_forward", "speedup", "source"]
    return pd.DataFrame(table, columns=columns)


def claim_rows(published: Published, rows: Sequence[Entry]) -> pd.DataFrame:
    """The paper's claims beside the lowest and the highest measured figure of what they speak of.

    Values are as published (× or per cent); so are the measured ones.
    """
    table = []
    for claim in published.claims:
        found = _measured(published, claim, rows)
        column = QUANTITIES[claim["quantity"]]
        values = [v * (1 if column == "speedup" else 100) for v in frame(found)[column].dropna()] if found else []
        table.append(
            {"method": claim["method"], "model": claim["model"], "scope": claim["scope"], "quantity": claim["quantity"]}
            | {"published": claim["value"], "unit": claim["unit"], "device": claim["device"]}
            | {"here_low": min(values, default=None), "here_high": max(values, default=None), "rows_here": len(values)}
            | {"source": claim["source"], "note": claim.get("note", "")}
        )
    columns = ["method", "model", "scope", "quantity", "published", "unit", "device", "here_low", "here_high"]
    return pd.DataFrame(table, columns=[*columns, "rows_here", "source", "note"])


def _measured(published: Published, claim: Mapping[str, Any], rows: Sequence[Entry]) -> list[Entry]:
    models = published.names["models"].get(claim["model"])
    benchmarks = published.names["benchmarks"].get(claim["scope"])
    return [
        entry
        for entry in rows
        if base(entry.method) == claim["method"]
        and (models is None or entry.model in models)
        and (benchmarks is None or entry.benchmark in benchmarks)
        and not one_token(entry.decoding_config)
    ]
