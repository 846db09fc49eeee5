"""Further sections of the report: one module each, named in `SECTIONS`.

A section is a module of this package with

* ``run(quick: bool) -> list of rows``: the experiment, as dictionaries of plain values. Its seeds
  start at `seeds_of(quick)` unless it says otherwise; `parallel` spreads episodes over the cores;
* ``render(rows) -> str``: Markdown that starts with a ``##`` heading, from the rows alone;
* optionally ``plot(rows, directory)``: PNG files, which the Markdown names as ``images/<file>``;
* optionally ``line(rows) -> str``: a sentence for the top, behind the ten lines.

Rows are kept in ``<out>/<module>.csv`` and made anew only when the code that made them has
changed: a run that was cut short goes on with the section that it had not finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, cast

import pandas as pd

from llmroute_env.command_line import cores
from llmroute_env.experiments.records import write_text
from llmroute_env.experiments.science.play import code_version
from llmroute_env.experiments.science.rows import Row, records

#: Modules of further sections, in the order of the report.
SECTIONS: Final[tuple[str, ...]] = ("targets", "pools", "cache_routing", "modes")

_FIRST_SEED: Final = 1000
_SEEDS: Final = 10
_QUICK_SEEDS: Final = 2
_STAMP: Final = "code"


class Section(Protocol):
    """What a module in `SECTIONS` holds."""

    __file__: str

    def run(self, quick: bool) -> list[Row]:
        """The experiment."""

    def render(self, rows: list[Row]) -> str:
        """Its part of the page."""


def section(name: str) -> Section:
    """The module of a section.

    Raises:
        ValueError: no such section; one line with those there are.
    """
    if name not in SECTIONS:
        raise ValueError(f"section {name!r}: must be one of {', '.join(SECTIONS) or '(none)'}")
    return cast("Section", import_module(f"llmroute_env.experiments.science.{name}"))


def seeds_of(quick: bool, count: int = _SEEDS) -> range:
    """Seeds that nobody tuned on: ``count`` of them, or two for a quick look."""
    return range(_FIRST_SEED, _FIRST_SEED + (min(_QUICK_SEEDS, count) if quick else count))


def parallel(function: Callable[..., Any], jobs: Iterable[Sequence[Any]]) -> list[Any]:
    """``[function(*job) for job in jobs]`` on all cores; the function must be importable."""
    from joblib import Parallel, delayed

    found: list[Any] = Parallel(n_jobs=cores())(delayed(function)(*job) for job in jobs)
    return found


def rows_of(name: str, out: Path, *, quick: bool, play: bool = True) -> list[Row]:
    """Rows of a section: those on file if the same code made them, else made now and filed.

    Args:
        name: of the section.
        out: directory of the CSV files.
        quick: a short experiment; its rows do not stand for those of a long one.
        play: whether to run it; otherwise whatever is on file, possibly nothing.
    """
    path, made = out / f"{name}.csv", section(name)
    stamp = _version(made, quick)
    if path.is_file():
        frame = _read(path)
        if len(frame) and (not play or set(frame[_STAMP]) == {stamp}):
            return records(frame.drop(columns=_STAMP))
    if not play:
        return []
    out.mkdir(parents=True, exist_ok=True)  # before the experiment: it may take minutes
    frame = pd.DataFrame(made.run(quick))
    # "nan" tells a missing number from an empty word.
    stamped = frame.assign(**{_STAMP: stamp})
    write_text(path, stamped.to_csv(index=False, na_rep="nan", lineterminator="\n"))
    # Read back, so that a page from this run equals one from the file.
    return records(_read(path).drop(columns=_STAMP))


def pages(out: Path, images: Path, *, quick: bool, play: bool = True) -> dict[str, list[str]]:
    """Lines of Markdown by section, with the plots drawn; sections without rows are left out."""
    found = {}
    for name in SECTIONS:
        rows = rows_of(name, out, quick=quick, play=play)
        if rows:
            plot = getattr(section(name), "plot", None)
            if plot is not None:
                plot(rows, images)
            found[name] = [*section(name).render(rows).rstrip().splitlines(), ""]
    return found


def headlines(out: Path, *, quick: bool) -> list[str]:
    """The sentences of sections that have one, from the rows on file."""
    found = []
    for name in SECTIONS:
        line = getattr(section(name), "line", None)
        rows = rows_of(name, out, quick=quick, play=False) if line else []
        if line is not None and rows:
            found.append(str(line(rows)))
    return found


def _read(path: Path) -> pd.DataFrame:
    """Rows on file as they were written, to the last digit."""
    words = pd.read_csv(path, dtype=str, keep_default_na=False)
    columns = {name: words[name] if name == _STAMP else _values(words[name]) for name in words}
    return pd.DataFrame(columns)


def _values(column: pd.Series) -> pd.Series:
    if set(column) <= {"True", "False"}:
        return column == "True"
    if set(column) <= {"True", "False", "nan"}:  # some rows have no such value
        return column.map({"True": 1.0, "False": 0.0, "nan": float("nan")})
    for kind in (int, float):
        try:
            return column.map(kind)
        except ValueError:
            continue
    return column


def _version(made: Section, quick: bool) -> str:
    """Of the package's code, the section's own and the size of the experiment."""
    own = hashlib.sha256(Path(made.__file__).read_bytes()).hexdigest()[:8]
    return f"{code_version()}-{own}{'-quick' if quick else ''}"
