"""What the entry points share: one-line errors, and the step from a configuration to objects. The only code that sees
`cfg`.
"""

from __future__ import annotations

import inspect
import itertools
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException, InstantiationException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from kinds import check_kinds
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

CONF = str(Path(__file__).resolve().parent.parent / "conf")
GENERATION_KEYS = (
    "model",
    "method",
    "decoding",
    "benchmark",
    "limit",
    "seed",
    "device",
    "batch_size",
    "trace",
    "predict_all",
)
EXPECTED = (HydraException, OmegaConfBaseException, ValueError, RuntimeError, OSError)


def entry_point(
    task: Callable[[DictConfig], object],
    config_name: str,
    stopped: str = "stopped; the same command takes it up where it stopped",
) -> None:
    """Run a task under Hydra. An expected error ends it with one line on stderr and exit code 1; any other shows its
    traceback; `stopped` is said where it is interrupted.

    In a sweep a failed job does not stop the others; the exit code tells that one failed.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach the handlers below, not Hydra's printer
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    here, paths = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in paths:  # the processes that launchers start look for this module
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, paths)])
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)

    @wraps(task)
    def job(cfg: DictConfig) -> object:
        try:
            check_kinds(config_name, cfg)
            return task(cfg)
        except EXPECTED as error:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise
            fail(error)

    try:
        hydra.main(version_base="1.3", config_path=CONF, config_name=config_name)(job)()
    except EXPECTED as error:
        report_sweep()
        fail(error)
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        sys.exit(130)
    report_sweep()


class SweepJobs(Callback):
    """Hydra's callback that keeps what came of each job of a sweep, whichever launcher ran it."""

    folder: Path | None = None  # of the sweep under way in this process

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """A launcher's process works where the sweep was started: paths in its settings are meant from there."""
        if Path(config.hydra.runtime.cwd).is_dir():
            os.chdir(config.hydra.runtime.cwd)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        SweepJobs.folder = Path(config.hydra.sweep.dir)
        SweepJobs.folder.mkdir(parents=True, exist_ok=True)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        if config.hydra.mode != RunMode.MULTIRUN:
            return
        failed = job_return.status == JobStatus.FAILED
        ended = job_return._return_value  # its `return_value` would raise what the job raised
        job = {"overrides": list(config.hydra.overrides.task), "number": config.hydra.job.num}
        job |= {"error": one_line(ended), "folder": None} if failed else {"error": None, "folder": str(ended)}
        path = Path(config.hydra.sweep.dir) / f"job_{config.hydra.job.num}.json"
        path.write_text(json.dumps(job))


def report_sweep() -> None:
    """Table and plot of the sweep that this process ran, if it ran one."""
    from evaluation.report.sweep import SweepJob, write_sweep

    folder, SweepJobs.folder = SweepJobs.folder, None
    if folder is None:
        return
    found = sorted((json.loads(path.read_text()) for path in folder.glob("job_*.json")), key=lambda j: j["number"])
    jobs = [
        SweepJob(
            dict(override.split("=", 1) for override in job["overrides"]),
            Path(job["folder"]) if job["folder"] else None,
            job["error"],
        )
        for job in found
    ]
    if jobs:
        print(write_sweep(jobs, folder).to_string(index=False, float_format="%.4g", na_rep="–"))
        print(f"\ntable and plot of the sweep: {folder}")


def fail_softly(job: str, error: BaseException) -> None:
    """One line on stderr for a job that failed among others."""
    print(f"failed: {job}: {one_line(error)}", file=sys.stderr)


def fail(error: BaseException) -> NoReturn:
    """One line on stderr, exit code 1."""
    print(f"error: {one_line(error)}", file=sys.stderr)
    sys.exit(1)


def one_line(error: BaseException) -> str:
    """An error's message without line breaks and without Hydra's wrapping."""
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    text, cause = (" ".join(str(e).split()) for e in (error, error.__cause__ or ""))
    if isinstance(error.__cause__, OmegaConfBaseException) and cause not in text:
        text += f" ({cause})"
    return text.partition(" Config search path:")[0]


def plain(cfg: Any) -> dict[str, Any]:
    """A configuration as plain, resolved values. Raises for a required key that was not given, naming it."""
    container = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def own_gpu(cfg: DictConfig) -> None:
    """Take a GPU for this process where the launcher asks for that (`own_gpu`) and the run is on one."""
    from evaluation.devices import take_gpu

    if cfg.own_gpu and str(cfg.device).startswith("cuda"):
        take_gpu()


def generation_config(cfg: DictConfig) -> dict[str, Any]:
    """The keys of a run's configuration that decide what is generated."""
    config = plain(cfg)
    return {key: config[key] for key in GENERATION_KEYS}


def compose_run(overrides: Sequence[str], groups: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The configuration of one run, as `scripts/run.py` would see it; `groups` (model, ...) are resolved already."""
    groups = groups or {}
    names = [f"{group}={value['name']}" for group, value in groups.items()]
    cfg = hydra.compose("run", overrides=[*names, *overrides])
    for group, value in groups.items():
        cfg[group] = value
    return generation_config(cfg)


def method_defaults() -> dict[str, dict[str, Any]]:
    """The settings of every method in conf/method: what the main table shows of one that was run with others too."""
    names = sorted(path.stem for path in Path(CONF, "method").glob("*.yaml"))
    return {name: plain(hydra.compose(f"method/{name}").method) for name in names}


def expanded(row: str) -> list[list[str]]:
    """The overrides of every row that a text stands for: "a=1 b=2,3" is a=1 b=2 and a=1 b=3, as in Hydra's sweeps."""
    overrides = OverridesParser.create().parse_overrides(row.split())
    values = [
        [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
        if override.is_sweep_override()
        else [str(override.input_line)]
        for override in overrides
    ]
    return [list(chosen) for chosen in itertools.product(*values)]


def build(config: Mapping[str, Any]) -> Any:
    """The object that a group describes: its `_target_` with its keys as arguments, `name` aside.

    Raises ValueError for a key that the target does not know.
    """
    settings = {key: value for key, value in config.items() if key != "name"}
    known = inspect.signature(hydra.utils.get_object(config["_target_"])).parameters
    for key in settings.keys() - {"_target_", *known}:
        raise ValueError(f"{config.get('name', config['_target_'])} has no setting {key!r}; known: {', '.join(known)}")
    return hydra.utils.instantiate(settings)


def check_device(device: str) -> None:
    """Raises ValueError for a device that torch does not know or that is not there."""
    import torch

    try:
        kind = torch.device(str(device)).type
    except RuntimeError:
        kind = "unknown"
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device={device} is unknown; cpu, cuda or cuda:<number> would do")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device}: no CUDA device is available here; device=cpu would do")


@lru_cache(maxsize=1)
def load(path: str, revision: str | None, device: str, dtype: str) -> tuple[Any, Any]:
    """Model and tokenizer; the last one stays loaded, so that a sweep loads it once."""
    import torch

    from entropycache import load_model
    from entropycache.models.checkpoint import resolve
    from entropycache.models.tokenizer import Tokenizer

    if dtype not in ("float32", "float64", "bfloat16", "float16"):
        raise ValueError(f"model.dtype={dtype} is unknown; float32, float64, bfloat16 or float16")
    check_device(device)
    directory = resolve(path, revision)
    return load_model(directory, device=device, dtype=getattr(torch, dtype)), Tokenizer(directory)


def answerer(config: Mapping[str, Any]) -> Any:
    """Model, method and decoding of a run's configuration, ready to answer. The cheap parts are checked before weights
    are read.
    """
    from entropycache.engine import check_window
    from evaluation.generate import Answerer

    model_config = config["model"]
    policy, decoding = build(config["method"]), build(config["decoding"])
    check_window(policy, decoding)
    model, tokenizer = load(model_config["path"], model_config["revision"], config["device"], model_config["dtype"])
    return Answerer(
        model,
        tokenizer,
        policy,
        decoding,
        chat=model_config["chat"],
        bos=model_config["bos"],
        seed=config["seed"],
        batch_size=config["batch_size"],
        trace=config["trace"],
        predict_all=config["predict_all"],
    )


def keyed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with a fingerprint of the model's files, so that a retrained checkpoint makes another run."""
    from entropycache.models.checkpoint import resolve
    from evaluation.provenance import checkpoint_fingerprint

    model = config["model"]
    return {
        **config,
        "model": {**model, "fingerprint": checkpoint_fingerprint(resolve(model["path"], model["revision"]))},
    }


def questions(config: Mapping[str, Any], chat_template: Callable[[str], str] | None) -> tuple[Any, list[Any]]:
    """The benchmark's task and the questions that a run asks."""
    from entropycache.settings import whole
    from evaluation.benchmarks import load_task, requests

    benchmark = config["benchmark"]
    if config["limit"] is not None:
        whole("limit", config["limit"], 1, "questions")
    keys = ("name", "data", "num_fewshot", "split", "count", "seed", "subtasks")
    task = load_task(**{key: benchmark[key] for key in keys if key in benchmark})
    return task, requests(task, config["limit"], chat_template)


def manifest(config: Mapping[str, Any], task: Any, asked: list[Any]) -> dict[str, Any]:
    """What goes on record beside a run's configuration."""
    from evaluation.benchmarks import task_record
    from evaluation.provenance import sha256_of

    return {
        "samples": len(asked),
        "device": config["device"],
        "dtype": config["model"]["dtype"],
        "attention": "sdpa, written out" if build(config["method"]).reads_attention else "sdpa",
        "seed": config["seed"],
        "prompts_sha256": sha256_of(request.prompt_text for request in asked),
        **task_record(task),
    }
