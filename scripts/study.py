"""One study of the paper's premises on the models of a profile: tables, plots and conclusions.

python scripts/study.py study=drift
python scripts/study.py -m study=drift,volatility,overhead,cost,calibrate
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import hydra
from entry import (
    EXPECTED,
    answerer,
    build,
    check_device,
    compose_run,
    entry_point,
    fail_softly,
    keyed,
    manifest,
    plain,
    questions,
)
from omegaconf import DictConfig
from tqdm import tqdm


def main(cfg: DictConfig) -> None:
    from evaluation.studies.result import folder_of, together, write_study

    config = plain(cfg)
    study, name = build(config["study"]), config["study"]["name"]
    check_device(config["device"])
    folder = folder_of(config["results"], config["profile"]["name"], name)
    failed: list[str] = []
    measured = list(measure(study, config, failed))
    if not measured:
        raise RuntimeError(f"study={name}: no model could be measured: {'; '.join(failed)}")
    result = write_study(study, together(measured), folder, settings(config))
    print("\n".join([f"{result.title} ({folder})", *(f"  {line}" for line in result.conclusion)]))
    if failed:
        raise RuntimeError(f"study={name}: not measured: {'; '.join(failed)}")


def measure(study: Any, config: Mapping[str, Any], failed: list[str]) -> Iterator[Any]:
    """The figures of each model; a model that fails is named in `failed` and does not stop the others."""
    from evaluation.studies.overhead import Overhead

    name = config["study"]["name"]
    if isinstance(study, Overhead):
        asked = [f"model={models(config)[0].split()[0]}", f"benchmark={config['benchmark']['name']}"]
        policies = {row: build(plain(hydra.compose("run", [*asked, *row.split()]).method)) for row in study.methods}
        with tqdm(total=len(policies), desc=name, unit="method", disable=None) as bar:
            yield study.measure(policies, config["device"], progress=bar.update)
        return
    for model in tqdm(models(config), desc=name, unit="model", disable=None):
        try:
            yield study.measure(subject(config, model))
        except EXPECTED as error:
            fail_softly(f"{name} {model}", error)
            failed.append(model)


def models(config: Mapping[str, Any]) -> list[str]:
    """The models to study. A profile names them with the benchmarks that each answers; one with none is left out.

    Raises ValueError where there is none, or two bear one name: their figures would be taken for those of one.
    """
    named = config["models"]
    if isinstance(named, Mapping):
        named = [model for model, asked in named.items() if asked]
    if not isinstance(named, list) or not all(isinstance(model, str) and model.strip() for model in named or [None]):
        raise ValueError(f"models={named} must be a list of names in conf/model, [tiny_llada] for example")
    names = [
        next((o.split("=", 1)[1] for o in m.split()[1:] if o.startswith("model.name=")), m.split()[0]) for m in named
    ]
    for name in (name for place, name in enumerate(names) if name in names[:place]):
        raise ValueError(f"models: two are called {name}; model.name=<another> behind one of them would do")
    return named


def subject(config: Mapping[str, Any], model: str) -> Any:
    """A model with the questions of the benchmark; `model` is its name and any overrides to run.yaml."""
    from evaluation.studies.trajectory import Subject

    overrides = [f"model={model.split()[0]}", *model.split()[1:], "method=full_recompute"]
    overrides += [f"seed={config['seed']}", f"device={config['device']}"]
    run = compose_run(overrides, {"benchmark": config["benchmark"], "decoding": config["decoding"]})
    answering = answerer(run)
    task, asked = questions(run, answering.chat_template())
    return Subject(run["model"]["name"], answering, asked, keyed(run), manifest(run, task, asked))


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What goes on record beside the figures."""
    from evaluation.provenance import code_version

    study = {key: value for key, value in config["study"].items() if key not in ("name", "_target_")}
    kept = {key: config[key] for key in ("models", "benchmark", "decoding", "seed", "device")}
    return {"study": study, **kept, "code_version": code_version()}


if __name__ == "__main__":
    entry_point(main, "study", stopped="stopped; trials of calibrate are kept, what other studies had measured is not")
