"""The page ``docs/fidelity.md``, and the tables that the command prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd
from rich import box
from rich.table import Table

from llmroute_env.experiments.fidelity.measures import MEASURES, Measure
from llmroute_env.experiments.fidelity.runs import Run
from llmroute_env.experiments.fidelity.variants import OURS, ROWS, VIDUR, Variant
from llmroute_env.experiments.science import markdown

#: Measures of the table of causes.
_SHOWN: Final = ("tpot_mean_s", "eel_mean_s", "eel_p99_s", "first_mean_s")

HEAD: Final = """# Fidelity: the same requests in Vidur and here

<!-- Written by scripts/fidelity.py; edit llmroute_env/experiments/fidelity/report.py. -->

[Vidur](https://github.com/microsoft/vidur) simulates engines kernel by kernel and was validated
against real ones. Three of its runs are replayed on this environment in mixed mode: Llama-2-70B,
four replicas of two A100 (DGX), Sarathi's scheduler with chunks of 512 tokens, at most 48 requests
a batch, 3,328 KV blocks of 16 tokens, a watermark of 1%. Arrivals, lengths and the router's
decisions are those of the run's file, so a difference is one of the engine model.

```bash
python scripts/fidelity.py --out results/fidelity --docs docs
```

Both sides use the same measured kernels. EEL is the time from arrival to the last token, prefill
completion the time from arrival to the first. The aim is an error below 5% on means and on the
makespan, and below 10% on percentiles. Errors are given three times: of this model as it is; with
those of Vidur's conventions that a profile can express; and with these and the same profile read
nearer to its rows, as Vidur's predictors do, instead of by our smooth fits.
"""

CAUSES: Final = """## Where the difference comes from

Errors [%] of a replay in which one thing after the other is done as Vidur does it, and below,
beside all of Vidur's conventions, of the three fits read from the profile's rows instead. Our
defaults stay: the conventions are choices of an engine model, not facts that one of the two has
wrong.
"""

LEFT_OUT: Final = """## What remains, and why

- **Launch of the all-reduce.** Vidur adds 20 µs to each of the two all-reduces of a layer, 3.2 ms
  an iteration of 80 layers. The profile has the kernel's time; whether the launch is hidden behind
  the kernels before it depends on the engine (with captured graphs it can be). It is the largest
  difference by far.
- **Reading a noisy profile.** All-reduces of up to a megabyte scatter between 10 and 67 µs in the
  profile itself, from one size to the next, and decode attention has steps by batch size. Vidur's
  random forests follow single rows; our fits are smooth and monotone. The last rows of the tables
  show what the other reading changes: one or two percent of an iteration, in both directions.
- **Queueing multiplies.** In the two runs with short prompts the slots are full much of the time,
  and prefill completion is mostly the wait for one: there a percent of iteration time is several
  percent of the wait, as the tables show. An engine model that is known to a percent cannot predict
  such a mean to five.
- **What is not represented**, each below 0.3% of mean TPOT (measured in `tests/test_fidelity.py`
  with the plain-Python reference): Vidur rounds the KV length of decoding requests up to a multiple
  of 64, adds 10% to prefill attention when several chunks share an iteration, and charges no decode
  attention in an iteration that only prefills, where we pay its launch (1.6 ms); a decoding request
  holds s + emitted + 1 tokens here, the rule of the decode-only model, one more than an engine
  whose prefill emits the first token; and the router decides every 2 ms, not at each arrival.

## What the model leaves out

- **The CPU.** Scheduling, sampling, detokenization and input preparation are one constant per
  iteration (`overhead_s`). These runs of Vidur leave them out too (its default). Its own
  measurements of them grow with the batch: see the note in `configs/devices/a100-80gb.yaml`.
- **Variation.** Iteration time is a function of the batch: no jitter, no clock throttling, no
  network contention, no stragglers.
- **Attention by shape.** Decode attention is linear in the KV tokens of the batch. Kernels also
  depend on how they are spread over requests, and have steps; its fit's error on rows that it has
  not seen is in the device file.
- **Other parallelism.** Pipeline stages, expert and sequence parallelism, several nodes.
- **Other memory.** Swapping to the host, KV in fewer bits, fragmentation beyond blocks, adapters.
- **Other decoding.** Speculative decoding, beam search, guided decoding; stopping is by length.
- **Other traffic than requests.** Weight updates, failures and restarts of engines, the network
  between user and router.
- **Kernels newer than the profile.** The A100 numbers are those of the profile's software stack;
  `scripts/calibrate_timing.py` compares them with a second, older one.
"""


#: Replays of the main table, with their names there.
_MAIN: Final = {
    OURS: "here",
    VIDUR: "with Vidur's conventions",
    ROWS: "and the profile's rows",
}


def rich_table(errors: pd.DataFrame, runs: Sequence[Run]) -> Table:
    """Errors of the main replays, a row per run and measure."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    head, rows = _main_table(errors, runs)
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number < 2 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def page(errors: pd.DataFrame, runs: Sequence[Run], variants: Sequence[Variant]) -> str:
    """Text of the page.

    Args:
        errors: ``run``, ``variant`` and the columns of `compare`.
        runs: in the order of the page.
        variants: the same, of the table of causes.
    """
    head, rows = _main_table(errors, runs)
    lines = [HEAD, *markdown.table(head, rows, left=2)]
    lines += [_verdict(errors), "", "![EEL here and in Vidur](images/fidelity.png)", ""]
    lines += [CAUSES]
    for run in runs:
        lines += [f"### {run.title}", ""]
        labels = [_measure(key).label for key in _SHOWN]
        rows = [
            [variant.label, *(_signed(_error(errors, run, variant.key, key)) for key in _SHOWN)]
            for variant in variants
        ]
        lines += markdown.table(["", *labels], rows)
    return "\n".join([*lines, LEFT_OUT])


def _main_table(errors: pd.DataFrame, runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    keys = [key for key in _MAIN if (errors["variant"] == key).any()]
    head = ["run", "measure", "Vidur", *(f"{_MAIN[key]} [%]" for key in keys), "aim [%]"]
    rows = []
    for run in runs:
        for measure in MEASURES:
            found = [_pick(errors, run, key, measure.key) for key in keys]
            rows.append(
                [
                    run.title,
                    measure.label,
                    f"{found[0]['vidur']:.4g} {measure.unit}",
                    *(_signed(row["error_percent"]) for row in found),
                    f"{measure.aim:g}",
                ]
            )
    return head, rows


def _verdict(errors: pd.DataFrame) -> str:
    """How many numbers meet the aim, and which do not."""
    aims = {measure.key: measure.aim for measure in MEASURES}
    words = []
    for key, name in (
        (OURS, "As it is, this model meets"),
        (VIDUR, "With Vidur's conventions it meets"),
        (ROWS, "With its conventions and the profile's rows it meets"),
    ):
        rows = errors[errors["variant"] == key]
        if rows.empty:
            continue
        missed = rows[rows["error_percent"].abs() >= rows["measure"].map(aims)]
        words.append(f"{name} the aim in {len(rows) - len(missed)} of {len(rows)} numbers.")
    return " ".join(words)


def _signed(percent: float) -> str:
    return f"{round(percent, 1) + 0.0:+.1f}"  # no negative zero


def _measure(key: str) -> Measure:
    return next(measure for measure in MEASURES if measure.key == key)


def _pick(errors: pd.DataFrame, run: Run, variant: str, measure: str) -> pd.Series:
    found = errors[
        (errors["run"] == run.name)
        & (errors["variant"] == variant)
        & (errors["measure"] == measure)
    ]
    return found.iloc[0]


def _error(errors: pd.DataFrame, run: Run, variant: str, measure: str) -> float:
    return float(_pick(errors, run, variant, measure)["error_percent"])
