"""The record of a run as JSON, and its comparison with an earlier one."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from llmroute_env.experiments.benchmark.model import Plan, Summary
from llmroute_env.experiments.benchmark.targets import QUOTED, TARGETS
from llmroute_env.experiments.records import write_text

FORMAT: Final = 1
#: Ratios below this are flagged: more than what repeats scatter on a quiet machine.
SLOWER: Final = 0.95


class RecordError(ValueError):
    """A file that is no record of this benchmark; one line."""


def record(
    summaries: Sequence[Summary], missing: Mapping[str, str], machine: Mapping[str, Any], plan: Plan
) -> dict[str, Any]:
    """Everything of a run, ready for JSON."""
    return {
        "format": FORMAT,
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "quick": plan.quick,
        "machine": dict(machine),
        "measures": {summary.measure.name: _entry(summary) for summary in summaries},
        "missing": dict(missing),
        "quoted": [
            {
                "what": anchor.what,
                "value": anchor.value,
                "measured_here": False,
                "compare_with": list(anchor.compare_with),
            }
            for anchor in QUOTED
        ],
    }


def _entry(summary: Summary) -> dict[str, Any]:
    measure = summary.measure
    targets = TARGETS.get(measure.name, ())
    entry: dict[str, Any] = {
        "unit": measure.unit,
        "better": measure.better or None,
        "median": _finite(summary.median),
        "min": _finite(summary.low),
        "max": _finite(summary.high),
        "repeats": summary.repeats,
    }
    if measure.curve:
        entry |= {"curve": measure.curve, "x": measure.x}
    if targets:
        entry["targets"] = [
            {
                "stage": target.stage,
                "at_least" if target.at_least else "at_most": target.value,
                "met": target.met(summary.median),
            }
            for target in targets
        ]
    return entry


def _finite(value: float) -> float | None:
    """JSON has no infinity: a measure without a value is null."""
    return value if math.isfinite(value) else None


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        RecordError: the file is absent or something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"--against {path}: {error.strerror}") from None
    except ValueError:
        raise RecordError(f"--against {path}: is not JSON; give a file that --json wrote") from None
    if not isinstance(content, dict) or "measures" not in content:
        raise RecordError(f"--against {path}: has no measures; give a file that --json wrote")
    if content.get("format") != FORMAT:
        raise RecordError(
            f"--against {path}: is of format {content.get('format')!r}, this program reads {FORMAT}"
        )
    measures = content["measures"]
    if not isinstance(measures, dict) or not all(_is_entry(entry) for entry in measures.values()):
        raise RecordError(f"--against {path}: a measure has no median; the file is damaged")
    return content


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("median"), int | float | None)


class Change(NamedTuple):
    """A measure in two runs."""

    name: str
    old: float
    new: float
    ratio: float  #: above 1 is better now, whichever side is better
    apart: bool  #: no repeat of one run is within the range of the other's

    @property
    def slower(self) -> bool:
        """Whether it is worse by more than repeats scatter."""
        return self.ratio < SLOWER


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Measures that both runs have, with their ratios; those without a better side are left out."""
    found = []
    for name, entry in new["measures"].items():
        earlier = old["measures"].get(name, {})
        before, now, better = earlier.get("median"), entry["median"], entry["better"]
        if not before or not now or better is None:
            continue
        ratio = now / before if better == "higher" else before / now
        found.append(Change(name, before, now, ratio, _apart(earlier, entry)))
    return found


def _apart(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    ends = (old.get("min"), old.get("max"), new["min"], new["max"])
    if None in ends:
        return False
    low, high, new_low, new_high = ends
    return bool(new_high < low or new_low > high)


def doubts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Why the two runs may not be comparable."""
    found = []
    if old.get("quick") != new["quick"]:
        found.append("one of the two is a --quick run: its sizes are smaller")
    facts = old.get("machine", {})
    return found + [
        f"{key}: {facts.get(key)} then, {new['machine'][key]} now"
        for key in ("cpu", "cores", "python", "numba", "numpy")
        if facts.get(key) != new["machine"][key]
    ]
