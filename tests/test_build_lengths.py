"""scripts/build_lengths.py --tail: long prompts mixed into a trace's table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

from llmroute_env.workload.quantiles import load_table

ROOT = Path(__file__).parents[1]
SHARE, MEDIAN, SIGMA, LEAST, MOST = 0.1, 16_000, 0.6, 8_192, 60_000


def build(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    rng = np.random.default_rng(4)
    prompt, decode = rng.integers(100, 4000, 4000), rng.integers(1, 500, 4000)
    rows = [f"{0.1 * i:.1f},{s},{o}" for i, (s, o) in enumerate(zip(prompt, decode, strict=True))]
    trace = directory / "trace.csv"
    trace.write_text("\n".join(["arrival_s,prompt,decode", *rows]) + "\n")
    command = ["scripts/build_lengths.py", str(trace), "--name", "mixed", "--out", str(directory)]
    return subprocess.run(
        [sys.executable, *command, *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_tail_is_mixed_in(tmp_path: Path) -> None:
    done = build(tmp_path, "--tail", f"{SHARE},{MEDIAN},{SIGMA},{LEAST},{MOST}")
    assert done.returncode == 0, done.stderr
    table = load_table(str(tmp_path / "mixed.yaml"))
    normal = np.random.default_rng(0).standard_normal(200_000)
    drawn = table.prompt.tokens(normal)
    long = drawn[drawn >= LEAST]
    assert len(long) / len(drawn) == pytest.approx(SHARE, abs=0.002)
    assert drawn.max() <= MOST
    # The rest is the trace: uniform from 100 to 4,000, with next to nothing in the gap.
    rest = drawn[drawn < LEAST]
    assert np.mean(rest > 4000) < 0.002
    assert rest[rest <= 4000].mean() == pytest.approx(2050, rel=0.02)
    # The tail is the lognormal cut off at both ends.
    law = stats.lognorm(SIGMA, scale=MEDIAN)
    low, high = law.cdf(LEAST), law.cdf(MOST)
    for level in (0.1, 0.5, 0.9):
        expected = law.ppf(low + level * (high - low))
        assert np.quantile(long, level) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("tail", ["0.1,2", "2,16000,0.6,8192,60000", "0.1,16000,0.6,60000,8192"])
def test_bad_tail_is_one_line(tmp_path: Path, tail: str) -> None:
    done = build(tmp_path, "--tail", tail)
    assert done.returncode == 2
    assert tail in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["conv", "code"])
def test_the_embedded_tables_are_reproduced(shared: Path, tmp_path: Path, name: str) -> None:
    trace, table = shared / "traces" / f"azure_2023_{name}.csv", f"azure-2023-{name}-tail"
    embedded = (ROOT / "configs" / "lengths" / f"{table}.yaml").read_text()
    tail = yaml.safe_load(embedded)["command"].split()[-1]
    command = ["scripts/build_lengths.py", str(trace), "--name", table, "--tail", tail]
    done = subprocess.run(
        [sys.executable, *command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{table}.yaml").read_text() == embedded
