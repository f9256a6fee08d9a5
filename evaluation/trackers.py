"""A finished run put into an experiment tracker: MLflow or Weights & Biases. Off unless chosen (`tracker=mlflow`).

What is sent is what the run's folder holds: configuration, figures, a table of the samples, a plot, the files. Nothing
is logged while a run is under way, so a tracker can neither slow it down nor break it, and a run can be sent at any
time. Each tracker's library is imported only where it is used.
"""

from __future__ import annotations

import fcntl
import importlib
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from evaluation.files import StoreError
from evaluation.runs import LoadedRun, load_run
from evaluation.statistics import figures

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WHOLE = "entropycache.sent"  # in W&B's folder of a run: it was written to its end
FILES = ("config.yaml", "manifest.json", "scores.json")
COLUMNS = ("id", "generated_tokens", "seconds", "steps", "refreshes", "recompute_ratio", "truncated", "empty", "text")


class Tracker(Protocol):
    """Where finished runs are sent."""

    def log_run(self, folder: Path) -> str:
        """Send a run, once; returns where it can be looked at."""
        ...


@dataclass(frozen=True)
class Facts:
    """What a tracker is told of a finished run."""

    run: LoadedRun

    @classmethod
    def of(cls, folder: Path) -> Facts:
        """Raises StoreError where the run is not finished and scored."""
        run = load_run(folder)
        if run.status != "done" or run.scores is None:
            raise StoreError(f"{folder}: {run.status} {run.note}; only a finished and scored run can be tracked")
        return cls(run)

    @property
    def name(self) -> str:
        return " ".join(str(self.run.config[group]["name"]) for group in ("benchmark", "model", "method"))

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration with dotted keys."""
        return dict(flat(self.run.config))

    @property
    def metrics(self) -> dict[str, float]:
        """Accuracy of every verdict with its standard error, and the run's figures; those there are."""
        assert self.run.scores is not None
        found: dict[str, Any] = {}
        for verdict, accuracy in self.run.scores["accuracy"].items():
            found |= {f"accuracy_{verdict}": accuracy["mean"], f"accuracy_{verdict}_se": accuracy["se"]}
        found |= dict(flat(asdict(figures(self.run.samples))))
        return {name.replace("@", "_at_"): float(value) for name, value in found.items() if value is not None}

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a sample: cost, text, and whether each verdict holds it right."""
        import pandas as pd

        assert self.run.scores is not None
        verdicts = {score["id"]: score for score in self.run.scores["samples"]}
        names = list(self.run.scores["accuracy"])
        rows = [
            {column: sample[column] for column in COLUMNS}
            | {name: verdicts[sample["id"]][name]["correct"] for name in names}
            for sample in self.run.samples
        ]
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        """Rows recomputed against steps, a point a sample."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3.5), layout="constrained")
        axes = figure.subplots()
        axes.scatter(self.table["steps"], 100 * self.table["recompute_ratio"], s=12)
        axes.set(xlabel="forward passes", ylabel="rows recomputed (%)", title=self.name, ylim=(0, None))
        return figure

    @property
    def files(self) -> list[Path]:
        return [self.run.folder / name for name in FILES]


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every plain value."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def as_image(figure: Figure) -> Any:
    """A figure as a PIL image: wandb takes no figure that is not pyplot's."""
    from PIL import Image

    data = io.BytesIO()
    figure.savefig(data, format="png")
    return Image.open(data)


def need(module: str, extra: str) -> Any:
    """The tracker's library. Raises RuntimeError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise RuntimeError(f"tracker={extra} needs {module}: pip install 'entropycache[{extra}]'") from error


@contextmanager
def own_errors(tracker: str, *kinds: type[Exception]) -> Iterator[None]:
    """Errors of a tracker's own kinds leave as RuntimeError that says so. The run is finished: it can be sent again."""
    try:
        yield
    except kinds as error:
        raise RuntimeError(f"tracker={tracker}: the run was not sent: {' '.join(str(error).split())}") from error


@contextmanager
def one_at_a_time(uri: str) -> Iterator[None]:
    """Jobs of a sweep wait for each other at an SQLite file, whose tables the first of them makes; not at a server."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    file = Path(uri.removeprefix("sqlite:///"))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_name(f"{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class MLflow:
    """An MLflow store or server: `sqlite:///<file>` or its address (MLflow 3 takes no new runs in plain folders). Files
    go to the folder `artifacts`, or where the server puts them.
    """

    uri: str
    experiment: str = "entropycache"
    artifacts: str | None = None

    def log_run(self, folder: Path) -> str:
        """Send a run; one that is there already, by its key, is left as it is. Returns MLflow's run id."""
        facts, mlflow = Facts.of(folder), need("mlflow", "mlflow")
        with own_errors("mlflow", mlflow.exceptions.MlflowException), one_at_a_time(self.uri):
            return self._sent(facts, mlflow)

    def _sent(self, facts: Facts, mlflow: Any) -> str:
        mlflow.set_tracking_uri(self.uri)
        if self.artifacts is not None and mlflow.get_experiment_by_name(self.experiment) is None:
            mlflow.create_experiment(self.experiment, artifact_location=Path(self.artifacts).absolute().as_uri())
        experiment = mlflow.set_experiment(self.experiment)
        same = f"tags.run_key = '{facts.run.key}'"
        known = mlflow.MlflowClient().search_runs([experiment.experiment_id], filter_string=same, max_results=1)
        if known:
            return str(known[0].info.run_id)
        with mlflow.start_run(run_name=facts.name, tags={"run_key": facts.run.key}) as run:
            mlflow.log_params(facts.settings)
            mlflow.log_metrics(facts.metrics)
            mlflow.log_table(facts.table, "samples.json")
            mlflow.log_figure(facts.plot(), "cost.png")
            for file in facts.files:
                mlflow.log_artifact(str(file))
        return str(run.info.run_id)


@dataclass(frozen=True)
class WandB:
    """Weights & Biases. `mode=offline` writes below `folder`, for `wandb sync` to send later; no account is needed."""

    folder: str
    project: str = "entropycache"
    mode: str = "offline"

    def log_run(self, folder: Path) -> str:
        """Send a run under its key as W&B's id; one that lies there whole, to be synced, is left as it is. Returns
        W&B's folder of it.
        """
        facts, wandb = Facts.of(folder), need("wandb", "wandb")
        for mark in sorted(Path(self.folder, "wandb").glob(f"offline-run-*-{facts.run.key}/{WHOLE}")):
            return str(mark.parent)
        with own_errors("wandb", wandb.errors.Error):
            return self._sent(facts, wandb)

    def _sent(self, facts: Facts, wandb: Any) -> str:
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=self.project, dir=self.folder, mode=self.mode, id=facts.run.key, name=facts.name,
            config=dict(facts.run.config), resume="allow", settings=wandb.Settings(silent=True),
        )  # fmt: skip
        picture = wandb.Image(as_image(facts.plot()))
        run.log({"samples": wandb.Table(dataframe=facts.table), "cost": picture, **facts.metrics})
        run.summary.update(facts.metrics)
        for file in facts.files:
            run.save(str(file), base_path=str(file.parent), policy="now")
        where = Path(run.dir).parent
        run.finish()
        if self.mode == "offline":
            (where / WHOLE).touch()
        return str(where)
