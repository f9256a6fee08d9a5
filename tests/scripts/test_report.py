"""The report from the command line: any set of runs, filtered; of a swept method, the settings in conf/method."""

import pandas as pd

from tests.evaluation.synthetic_runs import DUAL, FULL, ONE_TOKEN, THRESHOLD, config, write_run, write_speed


def test_the_main_table_shows_settings_that_a_method_inherits(script, tmp_path):
    """fast_dllm_dual.yaml names its variant alone; `first_step` and `rows` come from the file that it builds on."""
    dual = [DUAL | {"rows": "block", "first_step": first} for first in ("rule", "one")]
    for method, decoding in [(FULL, ONE_TOKEN), *((method, THRESHOLD) for method in dual)]:
        for benchmark in ("mini_gsm8k", "mini_math500"):
            write_run(tmp_path / "runs", config("tiny_llada", benchmark, method, decoding), n=10)
    write_speed(tmp_path / "runs", "tiny_llada", "mini_gsm8k", [(FULL, ONE_TOKEN), (dual[0], THRESHOLD)])
    places = [f"runs={tmp_path / 'runs'}", f"out={tmp_path / 'out'}"]
    code, out, err = script("report.py", *places, "benchmarks=[mini_gsm8k]", "title=A title")
    assert code == 0, err
    table = pd.read_csv(tmp_path / "out" / "main_table.csv")
    assert table["method"].tolist() == ["full_recompute", "fast_dllm_dual"]
    assert set(table["benchmark"]) == {"mini_gsm8k"}
    assert "tiny_llada · mini_gsm8k" in out and str(tmp_path / "out" / "index.html") in out
    assert (tmp_path / "out" / "README.md").read_text().startswith("# A title\n")


def test_without_runs_it_ends_in_one_line(script, tmp_path):
    code, out, err = script("report.py", f"runs={tmp_path / 'none'}", f"out={tmp_path / 'out'}")
    assert code == 1 and out == "" and err.startswith("error: ") and err.count("\n") == 1 and "none" in err
