"""What a reader must know beside the figures: what is missing, failed, damaged or refused, and what was left out."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from evaluation.report.entries import Entry, against, reference_of
from evaluation.report.runs import DAMAGED, DONE, EMPTY, FAILED, PARTIAL, UNSCORED, Run

SAYINGS = {
    PARTIAL: "unfinished",
    EMPTY: "begun, without a sample yet",
    FAILED: "failed",
    DAMAGED: "damaged",
    UNSCORED: "not scored yet",
}


def notes(runs: Sequence[Run], rows: Sequence[Entry]) -> list[str]:
    """One sentence for each run that is not tabulated and each comparison that is refused, in the order of paths; runs
    that failed for one reason share theirs.
    """
    found = []
    failed = Counter(run.detail for run in runs if run.state == FAILED)
    for run in runs:
        if run.state != DONE:
            alike = failed.pop(run.detail, 0) if run.state == FAILED else 1
            more = f" and {alike - 1} more" if alike > 1 else ""
            said = f"{run.path}{more}: {SAYINGS.get(run.state, run.state)}{', ' if run.detail else ''}{run.detail}"
            found += [said] if alike else []
        elif warning := run.scores.get("warning"):
            found.append(f"{run.path}: {warning}")
    for entry in rows:
        found += entry.notes
        if refused := against(entry, reference_of(rows, entry.group))[2]:
            row = f"{entry.model}, {entry.benchmark}, {entry.method}"
            found.append(f"{row}: no comparison with the reference: {refused}")
    return list(dict.fromkeys([*found, *_versions(rows)]))


def _versions(rows: Sequence[Entry]) -> list[str]:
    """Rows that code of different versions made stand in one table: said once a model and benchmark."""
    versions: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in rows:
        if entry.scored:
            versions[entry.group].add(str(entry.scored.manifest.get("code_version", "unknown"))[:12])
    return [
        f"{model}, {benchmark}: its rows were made by {len(found)} versions of the code ({', '.join(sorted(found))})"
        for (model, benchmark), found in versions.items()
        if len(found) > 1
    ]
