"""Load a trace: find its format, parse, sort, apply the options, and report what was done."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmroute_env.scenario.errors import nearest
from llmroute_env.scenario.workload import Trace
from llmroute_env.workload.blocks import Chains, Floats, Ints
from llmroute_env.workload.traces.csv_formats import CSV_FORMATS
from llmroute_env.workload.traces.jsonl_formats import JSONL_FORMATS
from llmroute_env.workload.traces.rows import (
    Format,
    Head,
    RawRows,
    TraceError,
    TraceMissingError,
    place,
)

FORMATS: dict[str, Format] = {entry.name: entry for entry in (*CSV_FORMATS, *JSONL_FORMATS)}
"""Known formats by name, in the order of detection. A new one is one more entry."""

_HEAD_BYTES = 2**20  # a line of JSON names thousands of blocks


@dataclass(frozen=True)
class TraceReport:
    """What became of a file's rows: rows = requests + skipped_zero_output + beyond_max."""

    path: str
    format: str
    rows: int  #: data rows in the file
    requests: int  #: rows that are replayed
    skipped_zero_output: int  #: rows without output, left out by ``zero_output: skip``
    beyond_max: int  #: rows after ``max_requests``, left out
    reordered: int  #: rows whose position changed when sorting by arrival
    over_limit: int  #: replayed rows with s + o over the context limit (before any clipping)
    clipped_prompt: int  #: rows whose prompt ``over_limit: clip`` cut
    clipped_decode: int  #: rows whose decode length it cut
    last_arrival_s: float  #: after ``rate_scale`` [s]
    odd_chains: int = 0  #: replayed rows with more or fewer prefix blocks than their prompt has

    def describe(self) -> str:
        """One line for a person."""
        parts = [f"{self.path} ({self.format}): {self.requests} of {self.rows} rows"]
        for name, words in (
            ("skipped_zero_output", "without output skipped"),
            ("beyond_max", "beyond max_requests"),
            ("reordered", "reordered"),
            ("over_limit", "over the context limit"),
            ("clipped_prompt", "prompts clipped"),
            ("clipped_decode", "decode lengths clipped"),
            ("odd_chains", "with more or fewer prefix blocks than their prompt"),
        ):
            count = getattr(self, name)
            if count:
                parts.append(f"{count} {words}")
        return ", ".join(parts)


@dataclass(frozen=True, eq=False)
class TraceData:
    """Replayable rows, sorted by arrival (stable). R rows; do not write to the arrays."""

    arrival_s: Floats  #: (R,) [s]
    prompt: Ints  #: (R,) [tokens]
    decode: Ints  #: (R,) [tokens]
    report: TraceReport
    chains: Chains | None = None  #: prefix blocks, of the prompts as they are in the file


def detect(path: Path, options: Trace) -> Format:
    """The format of a file, from the option or its content.

    Raises:
        TraceError: an unknown name, or content that is in no known format.
    """
    if options.format != "auto":
        if options.format not in FORMATS:
            names = ["auto", *FORMATS]
            raise TraceError(
                f"workload.trace.format = {options.format!r}: must be one of "
                f"{', '.join(names)}{_hint(options.format, names)}"
            )
        _head(path)  # refuses what is no data at all
        return FORMATS[options.format]
    head = _head(path)
    if options.columns is not None:  # naming columns says that it is a plain CSV
        return FORMATS["csv"]
    for entry in FORMATS.values():
        if entry.recognises(head):
            return entry
    # Partly right: say what is missing of the format that it resembles most.
    alike = {name: entry for name, entry in FORMATS.items() if entry.is_json == head.is_json}
    shared = {name: len(set(entry.columns) & set(head.header)) for name, entry in alike.items()}
    best = max(shared, key=lambda name: (shared[name], -len(alike[name].columns)))
    if shared[best]:
        missing = [column for column in FORMATS[best].columns if column not in head.header]
        raise TraceError(
            f"trace {path}: {'key' if head.is_json else 'column'} {missing[0]} is missing (format "
            f"{best}); the {'first row' if head.is_json else 'header'} has {', '.join(head.header)}"
        )
    headers = "; ".join(f"{name}: {','.join(entry.columns)}" for name, entry in alike.items())
    if head.is_json:
        raise TraceError(
            f"trace {path}: its first line {head.line[:80]!r} is not a JSON object of a known "
            f"format ({headers})"
        )
    if len(head.header) == 6 and head.header[0].replace(".", "").isdigit():
        raise TraceError(
            f"trace {path}: looks like a chunk of ServeGen, which is no trace but draws requests: "
            "workload.arrivals = {kind: servegen, path: its folder}"
        )
    raise TraceError(
        f"trace {path}: its header {head.line[:80]!r} is of no known format ({headers}); "
        "name the columns of a plain CSV in workload.trace.columns"
    )


def _hint(word: str, names: list[str]) -> str:
    hint = nearest(word, names)
    return hint if "did you mean" in hint else ""


def _head(path: Path) -> Head:
    with path.open("rb") as file:
        raw = file.read(_HEAD_BYTES)
    text = raw.decode("utf-8-sig", errors="replace").lstrip()
    if not text:
        raise TraceError(f"trace {path}: is empty, not even a header")
    if text.startswith("version https://git-lfs"):
        raise TraceError(f"trace {path}: is a Git LFS pointer, not the data; fetch it with git lfs")
    return Head(text.splitlines()[0])


def load_trace(options: Trace, context_limit: int | None = None) -> TraceData:
    """Read a trace file.

    Args:
        options: the scenario's ``workload.trace``.
        context_limit: largest s + o, for counting and for ``over_limit: clip`` [tokens].

    Raises:
        TraceMissingError: no such file; names where to get it.
        TraceError: one line that names file, row, line, column and value.

    Warns:
        UserWarning: the rows were not sorted; counts those whose position changed.
    """
    path = Path(options.path).expanduser()
    if path.is_dir():
        raise TraceError(f"trace {path}: is a folder, must be a file")
    if not path.is_file():
        # An unknown format name is refused even so: it is the user's own mistake.
        known = FORMATS.get(options.format)
        source = options.source or (known.source if known else FORMATS["azure"].source)
        raise TraceMissingError(
            f"trace file {options.path} not found: get it from {source}, and give its path as "
            "workload.trace.path"
        )
    entry = detect(path, options)
    raw = entry.parse(path, options)
    rows = len(raw.arrival_s)
    kept, skipped = _without_empty(path, raw, options)
    order = kept[np.argsort(raw.arrival_s[kept], kind="stable")]
    reordered = int(np.count_nonzero(order != kept))
    if reordered:
        warnings.warn(
            f"trace {path}: rows are not in order of arrival; sorted, the position of "
            f"{reordered} rows changed",
            stacklevel=2,
        )
    beyond = max(0, len(order) - (options.max_requests or len(order)))
    order = order[: len(order) - beyond]
    arrival_s = raw.arrival_s[order] / options.rate_scale
    prompt, decode = raw.prompt[order], raw.decode[order]
    over = np.zeros(len(order), bool) if context_limit is None else prompt + decode > context_limit
    clipped = (0, 0)
    if options.over_limit == "clip" and context_limit is not None:
        prompt, decode, clipped = _clip(prompt, decode, context_limit)
    report = TraceReport(
        path=str(path),
        format=entry.name,
        rows=rows,
        requests=len(order),
        skipped_zero_output=skipped,
        beyond_max=beyond,
        reordered=reordered,
        over_limit=int(np.count_nonzero(over)),
        clipped_prompt=clipped[0],
        clipped_decode=clipped[1],
        last_arrival_s=float(arrival_s[-1]),
        odd_chains=0 if raw.odd_chain is None else int(np.count_nonzero(raw.odd_chain[order])),
    )
    chains = None if raw.chains is None else raw.chains.take(order)
    return TraceData(arrival_s, prompt, decode, report, chains)


def _without_empty(path: Path, raw: RawRows, options: Trace) -> tuple[Ints, int]:
    """Row numbers with output, and how many have none."""
    empty = np.flatnonzero(raw.decode == 0)
    if empty.size and options.zero_output == "error":
        row = int(empty[0])
        raise TraceError(
            f"{place(path, row, int(raw.line[row]))}: {raw.columns[2]} = 0: a request must have "
            "at least 1 output token; workload.trace.zero_output = skip leaves such rows out"
        )
    kept = np.flatnonzero(raw.decode > 0)
    if not kept.size:
        raise TraceError(f"trace {path}: no row has an output token")
    return kept, int(empty.size)


def _clip(prompt: Ints, decode: Ints, limit: int) -> tuple[Ints, Ints, tuple[int, int]]:
    """Cut to s + o <= limit: the prompt to leave one output token, then the output."""
    short_prompt = np.minimum(prompt, limit - 1)
    short_decode = np.minimum(decode, limit - short_prompt)
    counts = (
        int(np.count_nonzero(short_prompt != prompt)),
        int(np.count_nonzero(short_decode != decode)),
    )
    return short_prompt, short_decode, counts
