"""``render_mode="ansi"``: the cluster as coloured text, about 100 columns wide."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from llmroute_env.rendering.view import Floats, FrameView, count, seconds
from llmroute_env.spaces import Device

WIDTH = 100
_BAR = 16
_MOST_DEVICES = 32  # rows; a terminal has about forty
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"

_RESET = "\x1b[0m"
_DIM = "\x1b[2m"
_BOLD = "\x1b[1m"
_BLUE = "\x1b[34m"
_CYAN = "\x1b[36m"
_AGES = ("\x1b[32m", "\x1b[33m", "\x1b[31m")  # fresh, past half of the limit, past the limit


def render_ansi(view: FrameView) -> str:
    """Draw ``view`` as text with ANSI colours, one line per device.

    Returns:
        Lines joined by newlines: header, devices, waiting queue, recent latencies.
    """
    lines = [_header(view), "", *_devices(view), "", *_queue(view), "", *_latencies(view)]
    return "\n".join(lines)


def _header(view: FrameView) -> str:
    total = view.period + view.periods_left
    horizon = f"{view.period}/{total}" if view.periods_left else f"{view.period} (horizon reached)"
    return (
        f"{_BOLD}{view.title}{_RESET}  t = {view.now_s:.2f} s  period {horizon}  "
        f"reward {view.reward:,.1f}  completed {view.completed:,}  rejected {view.rejected:,}"
    )


def _bar(share: float, width: int, colour: str) -> str:
    """A bar of ``width`` characters with eighths of a character at its end."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0.0:
        eighths = max(eighths, 1)  # a single request must not look like none
    full, rest = divmod(eighths, 8)
    text = "█" * full + (_EIGHTHS[rest] if rest else "")
    return f"{colour}{text}{_RESET}{_DIM}{'·' * (width - len(text))}{_RESET}"


def _devices(view: FrameView) -> list[str]:
    rows = [
        f"{_DIM}{'device':>6}  {'batch slots':<{_BAR + 9}}{'KV tokens':<{_BAR + 14}}"
        f"{'FIFO':>5} {'tokens':>7} {'iteration':>10}{_RESET}"
    ]
    for index, device in enumerate(view.devices[:_MOST_DEVICES]):
        active, slots = device[Device.ACTIVE], device[Device.BATCH_LIMIT]
        kv, limit = device[Device.KV_USED], device[Device.KV_LIMIT]
        slot_text = f"{active:.0f}/{slots:.0f}"
        kv_text = f"{count(kv)}/{count(limit)}"
        state = seconds(device[Device.LAST_ITERATION]) if device[Device.UP] > 0 else "down"
        rows.append(
            f"{index:>6}  {_bar(active / slots, _BAR, _BLUE)} {slot_text:<8}"
            f"{_bar(kv / limit, _BAR, _CYAN)} {kv_text:<13}"
            f"{device[Device.FIFO_LENGTH]:>5.0f} {count(device[Device.FIFO_TOKENS]):>7} {state:>10}"
        )
    more = view.devices[_MOST_DEVICES:]
    if len(more):
        slots = more[:, Device.ACTIVE].sum() / more[:, Device.BATCH_LIMIT].sum()
        kv = more[:, Device.KV_USED].sum() / more[:, Device.KV_LIMIT].sum()
        rows.append(
            f"{'+' + str(len(more)):>6}  {_bar(slots, _BAR, _BLUE)} {slots:<8.0%}"
            f"{_bar(kv, _BAR, _CYAN)} {kv:<13.0%}"
            f"{more[:, Device.FIFO_LENGTH].sum():>5.0f} "
            f"{count(more[:, Device.FIFO_TOKENS].sum()):>7}"
        )
    return rows


def _queue(view: FrameView) -> list[str]:
    hidden = f" (+{view.hidden:,} beyond the window)" if view.hidden else ""
    if not view.waiting:
        return ["waiting 0"]
    scale = view.age_scale_s
    head = (
        f"waiting {len(view.queue):,}{hidden}, oldest {seconds(float(view.ages_s.max(initial=0)))} "
        f"{_DIM}(oldest first; {_RESET}{_AGES[0]}■{_RESET}{_DIM} < {seconds(scale / 2)} ≤ {_RESET}"
        f"{_AGES[1]}■{_RESET}{_DIM} < {seconds(scale)} ≤ {_RESET}{_AGES[2]}■{_RESET}{_DIM}){_RESET}"
    )
    room = 2 * WIDTH
    levels = [min(int(2 * age / scale), 2) for age in view.ages_s[:room].tolist()]
    rows = [
        "".join(
            f"{_AGES[age]}{'■' * len(list(run))}" for age, run in groupby(levels[start:][:WIDTH])
        )
        + _RESET
        for start in range(0, len(levels), WIDTH)
    ]
    if len(view.queue) > room:
        rows.append(f"{_DIM}… and {len(view.queue) - room:,} younger ones{_RESET}")
    return [head, *rows]


def _latencies(view: FrameView) -> list[str]:
    if not len(view.eel_s):
        return ["no request completed yet"]
    return [
        _latency_line("EEL", view.eel_s, view.eel_limit_s),
        _latency_line("TTFT", view.ttft_s, view.ttft_limit_s),
    ]


def _latency_line(name: str, values: Floats, limit_s: float | None) -> str:
    shown = values[-50:]
    top = max(float(shown.max()), 1e-9)
    spark = "".join(_LEVELS[min(int(8 * value / top), 7)] for value in shown)
    line = (
        f"{name:<5}{_CYAN}{spark:<50}{_RESET} last {seconds(float(values[-1]))}, "
        f"mean {seconds(float(values.mean()))}, max {seconds(float(values.max()))}"
    )
    if limit_s is None or not np.isfinite(limit_s):
        return line
    return f"{line}, limit {seconds(limit_s)}"
