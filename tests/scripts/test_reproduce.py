"""The reproduction from plan to report, on a random-weights checkpoint: done once, taken up where it stopped."""

import pandas as pd
import pytest

from evaluation.report import MAIN_COLUMNS

ROWS = ["method=full_recompute decoding=one_token", "method=full_recompute decoding=threshold", "method=entropycache"]


@pytest.fixture
def small_profile(checkpoints, tmp_path):
    quoted = ",".join(f"'{row}'" for row in ROWS)
    common = [f"model.path={checkpoints['llada']}", "benchmark.gen_length=8", "decoding.block_length=8"]
    common.append("benchmark.num_fewshot=0")
    return [
        f"profile.rows=[{quoted}]",
        "profile.common=[" + ",".join(f"'{override}'" for override in common) + "]",
        "profile.limit=3",
        "profile.prompts=2",
        f"results={tmp_path}",
    ]


def table_of(out):
    return out[out.index("tiny_llada · mini_gsm8k") : out.index("tables and plots:")]


def test_it_ends_with_the_table_and_a_second_run_redoes_nothing(script, small_profile, tmp_path, monkeypatch):
    code, out, err = script("reproduce_paper.py", *small_profile)
    assert code == 0, err
    report = tmp_path / "embedded"
    table = pd.read_csv(report / "main_table.csv")
    assert list(table.columns) == MAIN_COLUMNS
    assert table["method"].tolist() == ["full_recompute", "full_recompute", "entropycache"]
    assert table["n"].tolist() == [3, 3, 3] and table["speedup"].notna().all()
    assert table["speedup"][0] == 1 and table["refresh_rate"][0] == 1
    assert (report / "main_table.md").exists() and list((report / "plots").glob("*.png"))
    assert str(report) in out

    monkeypatch.setattr("entropycache.engine.advance", lambda *_: pytest.fail("something was generated again"))
    code, again, err = script("reproduce_paper.py", *small_profile)
    assert code == 0, err
    assert table_of(again) == table_of(out)


def test_stopped_in_the_middle_it_finishes_the_rest(script, small_profile, tmp_path, monkeypatch):
    from entropycache import engine

    steps, advance = [], engine.advance

    def stopping(*arguments):
        steps.append(1)
        if len(steps) == 12:
            raise KeyboardInterrupt
        return advance(*arguments)

    monkeypatch.setattr(engine, "advance", stopping)
    code, _, err = script("reproduce_paper.py", *small_profile)
    assert code == 130 and "takes it up where it stopped" in err
    code, out, err = script("reproduce_paper.py", *small_profile)
    assert code == 0, err
    assert "tiny_llada · mini_gsm8k" in out
    script("reproduce_paper.py", *small_profile, f"results={tmp_path / 'whole'}")
    whole, resumed = (pd.read_csv(folder / "embedded" / "main_table.csv") for folder in (tmp_path / "whole", tmp_path))
    columns = ["method", "decoding", "n", "accuracy", "recompute_ratio", "refresh_rate", "tokens_per_forward"]
    pd.testing.assert_frame_equal(whole[columns], resumed[columns])


def test_a_failing_job_does_not_stop_the_others(script, small_profile, tmp_path):
    rows = "profile.rows=['method=full_recompute decoding=one_token','method=entropycache method.k=-1']"
    code, out, err = script("reproduce_paper.py", *small_profile, rows)
    assert code == 1 and "k -1 must be a whole number" in err and "2 of 3 jobs failed" in err
    assert "failed" in (tmp_path / "embedded" / "main_table.md").read_text()


@pytest.mark.parametrize(("profile", "jobs"), [("embedded", 8), ("paper", 2 * 6 * 8)])
def test_a_dry_run_lists_every_job_and_runs_none(script, tmp_path, profile, jobs):
    code, out, err = script("reproduce_paper.py", "dry_run=true", f"profile={profile}", f"results={tmp_path}")
    assert code == 0, err
    assert len(out.splitlines()) == jobs and not list(tmp_path.iterdir())
