"""Free-format MPS files, which every LP and MILP solver reads."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np

from policies.hindsight.time_indexed import Program


def write_mps(made: Program, path: Path, *, name: str, remarks: tuple[str, ...] = ()) -> None:
    """Write a program, gzipped if the name ends in ``.gz``.

    MPS has no agreed way to say "maximise", so the file *minimises the negative reward*.

    Args:
        made: the program.
        path: file to write.
        name: name of the problem; blanks become underscores.
        remarks: comment lines.
    """
    with _open(path) as file:
        for remark in ("minimise the negative of the reward", *remarks):
            file.write(f"* {' '.join(remark.split())}\n")
        file.write(f"NAME {'_'.join(name.split()) or 'instance'}\nROWS\n N reward\n")
        equal = made.lower == made.upper
        for row, is_equal in zip(made.row_names, equal, strict=True):
            file.write(f" {'E' if is_equal else 'L'} {row}\n")
        file.write("COLUMNS\n")
        file.writelines(_columns(made))
        file.write("RHS\n")
        for i in np.flatnonzero(made.upper):
            file.write(f" rhs {made.row_names[i]} {_number(made.upper[i])}\n")
        file.write("BOUNDS\n")
        for column, most in zip(made.column_names, made.most, strict=True):
            file.write(f" UP bounds {column} {_number(most)}\n")
        file.write("ENDATA\n")


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return cast("IO[str]", gzip.open(path, "wt", encoding="ascii", errors="replace"))
    return path.open("w", encoding="ascii", errors="replace")


def _columns(made: Program) -> Iterator[str]:
    """Lines of the COLUMNS section, integral columns between markers."""
    matrix = made.rows.tocsc()
    marked = False
    for c, column in enumerate(made.column_names):
        if bool(made.integer[c]) != marked:
            marked = not marked
            yield f" marker{c} 'MARKER' '{'INTORG' if marked else 'INTEND'}'\n"
        if made.reward[c]:
            yield f" {column} reward {_number(-made.reward[c])}\n"
        for entry in range(matrix.indptr[c], matrix.indptr[c + 1]):
            row = made.row_names[matrix.indices[entry]]
            yield f" {column} {row} {_number(matrix.data[entry])}\n"
    if marked:
        yield " marker 'MARKER' 'INTEND'\n"


def _number(value: float) -> str:
    """Shortest text that reads back as the same double."""
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
