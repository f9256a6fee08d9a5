"""Tables, plots and a page from any set of runs.

python scripts/report.py runs=results/runs out=results/report
"""

from __future__ import annotations

from pathlib import Path

from entry import CONF, entry_point, method_defaults
from omegaconf import DictConfig


def main(cfg: DictConfig) -> None:
    from evaluation.report import format_table, write_report

    report = write_report(
        Path(cfg.runs),
        Path(cfg.out),
        cfg.title,
        models=list(cfg.models),
        benchmarks=list(cfg.benchmarks),
        methods=list(cfg.methods),
        defaults=method_defaults(),
        reference=Path(CONF, "reference"),
    )
    print(format_table(report.main))
    for line in [*report.findings, *(f"note: {note}" for note in report.notes)]:
        print(f"\n{line}")
    print(f"\nthe report lies in {report.folder}; {report.page} is its page")


if __name__ == "__main__":
    entry_point(main, "report")
