"""Paired speed of several methods on the same prompts: times to `speed.json` in a run folder of its own, one line a
method on stdout.

    python scripts/speed.py model=tiny_llada benchmark=mini_gsm8k prompts=20
    python scripts/speed.py model=tiny_llada benchmark=mini_gsm8k 'rows=[+setting=reference, +setting=entropycache]'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from entry import answerer, compose_run, entry_point, expanded, keyed, manifest, own_gpu, plain, questions
from omegaconf import DictConfig
from tqdm import tqdm

from evaluation.comparison import differences


def main(cfg: DictConfig) -> None:
    from evaluation.devices import check_idle

    config = plain(cfg)
    own_gpu(cfg)
    if not config["allow_busy_device"]:
        check_idle(config["device"])
    common = [f"{key}={value}" for key, value in (("seed", config["seed"]), ("device", config["device"]))]
    groups = {"model": config["model"], "benchmark": config["benchmark"]}
    rows = [compose_run([*row, *common], groups) for several in config["rows"] for row in expanded(several)]
    folder = speed(rows, config["prompts"], config["warmup"], Path(cfg.results))
    print_speedups(folder)


def speed(configs: Sequence[Mapping[str, Any]], prompts: int, warmup: int, results: Path) -> Path:
    """Time the runs of several configurations, the reference first, on the first `prompts` questions; returns the
    folder.

    A finished measurement is not made again; a stopped one goes on with the next prompt.
    """
    from entropycache.settings import whole
    from evaluation.speed import SpeedRow, check_rows, measure, write_speed
    from evaluation.store import RunStore

    whole("prompts", prompts, 1, "questions")
    rows = [SpeedRow(label, answerer(c), c) for label, c in zip(labels(configs), configs, strict=True)]
    check_rows(rows)
    first = {**configs[0], "limit": prompts}
    task, asked = questions(first, rows[0].answerer.chat_template())
    config = {
        "model": first["model"],
        "benchmark": first["benchmark"],
        "method": {"name": "speed"},
        "rows": [{"method": c["method"], "decoding": c["decoding"]} for c in configs],
        **{key: first[key] for key in ("limit", "seed", "device", "predict_all")},
        "warmup": warmup,
    }
    with RunStore(results / "runs").open(keyed(config), manifest(first, task, asked)) as store:
        done = len(asked) - len(store.missing)
        name = f"{config['model']['name']} {config['benchmark']['name']} speed"
        with tqdm(total=len(asked) * len(rows), initial=done * len(rows), desc=name, unit="run", disable=None) as bar:

            def show(label: str) -> None:
                bar.set_postfix_str(label, refresh=False)
                bar.update()

            measure(store, rows, asked, warmup, first["seed"], show)
        if not store.done:
            write_speed(store, rows)
        store.finish()
    return store.folder


def labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Method and decoding of every row, and the settings in which it differs from others of that name."""
    names = [f"{config['method']['name']} {config['decoding']['name']}" for config in configs]
    settings = [config["method"] | config["decoding"] for config in configs]

    def own(place: int) -> list[str]:
        peers = [other for other, name in zip(settings, names, strict=True) if name == names[place]]
        keys = {key for other in peers for key in differences(settings[place], other)}
        return [f"{key}={value}" for key, value in settings[place].items() if key in keys]

    return [" ".join([name, *own(place)]) for place, name in enumerate(names)]


def print_speedups(folder: Path) -> None:
    """One line a row: speedup over the reference with its interval, tokens per second, decision share."""
    import json

    from evaluation.statistics import paired_ratio, ratio_of_sums, times

    table = json.loads((folder / "speed.json").read_text())
    reference = table["rows"][0]
    print(f"{table['model']} {table['benchmark']}, {len(table['prompts'])} prompts: {folder}")
    for row in table["rows"]:
        ratio = paired_ratio(reference["seconds"], row["seconds"])
        interval = "" if ratio.low is None else f" [{times(ratio.low)}, {times(ratio.high)}]"
        rate = ratio_of_sums(row["tokens"], row["seconds"]) or 0
        share = ratio_of_sums(row["decision_seconds"], row["seconds"]) or 0
        print(f"  {row['label']:32} {times(ratio.value)}{interval}  {rate:.1f} tokens/s, {100 * share:.2f} % deciding")


if __name__ == "__main__":
    entry_point(main, "speed")
