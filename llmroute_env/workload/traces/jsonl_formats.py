"""Formats with one JSON object per line and prefix blocks: Mooncake's and Qwen-Bailian's."""

from __future__ import annotations

import json
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from llmroute_env.scenario.workload import Trace
from llmroute_env.workload.blocks import Bools, Chains, Floats, Ints, prefix_ids
from llmroute_env.workload.traces.rows import Format, RawRows, TraceError, place

_MOONCAKE = ("timestamp", "input_length", "output_length")
_QWEN = ("chat_id", "timestamp", "input_length", "output_length")
_HASHES = "hash_ids"
_MOST_TOKENS = 2**31 - 1


def _mooncake(path: Path, options: Trace) -> RawRows:
    """Mooncake's traces: milliseconds, here since the first request; blocks of 512 tokens.

    Other tools write this format too, with blocks of their own: ``workload.trace.block``.
    """
    return _parse(path, options, per_second=1000.0, block=512)


def _qwen(path: Path, options: Trace) -> RawRows:
    """Qwen-Bailian's traces: seconds, here since the first request; blocks of 16 tokens.

    Chats and turns are not used: what turns of a chat have in common, the blocks say.
    """
    return _parse(path, options, per_second=1.0, block=16)


def _parse(path: Path, options: Trace, per_second: float, block: int) -> RawRows:
    rows, lines = _objects(path)
    arrival, prompt, decode = _MOONCAKE
    times = _numbers(path, rows, lines, arrival, 0.0)
    s = _tokens(path, rows, lines, prompt, 1)
    o = _tokens(path, rows, lines, decode, 0)
    chains, odd = _chains(path, rows, lines, options.block or block, s)
    # Published files begin at 0; a part of one, or times since 1970, must not begin with idling.
    arrival_s = (times - times.min()) / per_second
    return RawRows(arrival_s, s, o, lines, _MOONCAKE, chains, odd)


def _objects(path: Path) -> tuple[list[dict[str, Any]], Ints]:
    """The file's objects and their lines, blank lines left out but counted.

    Raises:
        TraceError: a line holds no JSON object, or there are none at all.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise TraceError(f"trace {path}: not UTF-8 text") from None
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            where = place(path, len(rows), number)
            raise TraceError(f"{where}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise TraceError(f"{place(path, len(rows), number)}: must be a JSON object")
        rows.append(row)
        lines.append(number)
    if not rows:
        raise TraceError(f"trace {path}: is empty")
    return rows, np.array(lines, np.int64)


def _numbers(path: Path, rows: list[dict[str, Any]], lines: Ints, key: str, least: float) -> Floats:
    """A key's numbers, at least ``least``.

    Raises:
        TraceError: naming file, row, line, key and value of the first bad one.
    """
    values = np.empty(len(rows))
    for index, row in enumerate(rows):
        value: Any = row.get(key)
        # JSON's true is an integer for Python, and some files write numbers as text.
        if type(value) not in (int, float) or not least <= value <= 2.0**63:
            raise _fault(path, index, lines, row, key, f"must be a number of at least {least:g}")
        values[index] = value
    return values


def _tokens(path: Path, rows: list[dict[str, Any]], lines: Ints, key: str, least: int) -> Ints:
    values = _numbers(path, rows, lines, key, least)
    bad = np.flatnonzero((values != np.rint(values)) | (values > _MOST_TOKENS))
    if bad.size:
        index = int(bad[0])
        needed = "must be a whole number of tokens, below 2^31"
        raise _fault(path, index, lines, rows[index], key, needed)
    return values.astype(np.int64)


def _fault(
    path: Path, index: int, lines: Ints, row: dict[str, Any], key: str, needed: str
) -> TraceError:
    where = place(path, index, int(lines[index]))
    if key not in row:
        return TraceError(f"{where}: {key} is missing; the object has {', '.join(row) or 'no key'}")
    return TraceError(f"{where}: {key} = {json.dumps(row[key])[:60]}: {needed}")


def _chains(
    path: Path, rows: list[dict[str, Any]], lines: Ints, block: int, prompt: Ints
) -> tuple[Chains | None, Bools]:
    """The prefix blocks, None where no row has any, and the rows whose number of them is odd.

    A row without blocks shares nothing. A row with more or fewer than its prompt has (whole ones,
    or one more for the rest) is believed as far as it goes, unless that is so of half the rows:
    then the file has blocks of another size.
    """
    lists = [row.get(_HASHES) or [] for row in rows]
    for index, hashes in enumerate(lists):
        if not isinstance(hashes, list):
            raise _fault(path, index, lines, rows[index], _HASHES, "must be a list of integers")
    if not any(lists):
        return None, np.zeros(len(rows), bool)
    length = np.array([len(hashes) for hashes in lists], np.int64)
    whole, partial = np.divmod(prompt, block)
    most = whole + (partial > 0)
    odd = (length > 0) & ((length < whole) | (length > most))
    if 2 * np.count_nonzero(odd) > np.count_nonzero(length):
        index = int(np.flatnonzero(odd)[0])
        raise TraceError(
            f"{place(path, index, int(lines[index]))}: {_HASHES} has {length[index]} blocks for "
            f"{_MOONCAKE[1]} = {prompt[index]}: must be {whole[index]} or {most[index]} with "
            f"blocks of {block} tokens; workload.trace.block names another size"
        )
    raw = _integers(path, lines, lists)
    kept = np.minimum(length, most)  # ids of what comes after the prompt say nothing of it
    first = np.concatenate(([0], np.cumsum(length)))
    within = np.arange(first[-1]) - np.repeat(first[:-1], length) < np.repeat(kept, length)
    start = np.concatenate(([0], np.cumsum(kept)))
    return Chains(block, prefix_ids(raw[within], start), start), odd


def _integers(path: Path, lines: Ints, lists: list[list[Any]]) -> Ints:
    """The hashes of all rows, one row after the other: integers, equal where the hashes are.

    Raises:
        TraceError: naming file, row, line and value of the first that is no integer.
    """
    flat = list(chain.from_iterable(lists))
    raw = np.array(flat)
    if raw.dtype == np.int64:
        return raw
    # Hashes of 64 bits without a sign do not fit, and what is no integer must be named.
    for index, hashes in enumerate(lists):
        if any(type(value) is not int for value in hashes):
            wrong = next(compress(hashes, (type(value) is not int for value in hashes)))
            where = place(path, index, int(lines[index]))
            shown = json.dumps(wrong)[:60]
            raise TraceError(f"{where}: {_HASHES} holds {shown}: must be a list of integers")
    names = {value: name for name, value in enumerate(dict.fromkeys(flat))}
    return np.array([names[value] for value in flat], np.int64)


JSONL_FORMATS = (
    Format(
        "qwen",
        _QWEN,
        "https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon",
        _qwen,
        is_json=True,
    ),
    Format(
        "mooncake",
        _MOONCAKE,
        "https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release/traces",
        _mooncake,
        is_json=True,
    ),
)
