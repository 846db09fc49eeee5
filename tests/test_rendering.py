"""Frames: what they show, their size and speed, at every fleet size."""

from __future__ import annotations

import re
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled

from llmroute_env.rendering import FrameView, render_ansi, render_rgb
from llmroute_env.rendering.view import RECENT, count, seconds
from llmroute_env.spaces import Active, Clock, Device, Queue

WINDOW = 512


def observation(
    devices: int, slots: int, waiting: int, *, hidden: int = 0, seed: int = 0
) -> dict[str, np.ndarray]:
    """An observation of a half-busy fleet; device 0 is idle, device 1 full, device 2 down."""
    rng = np.random.default_rng(seed)
    kv_limit = 500.0 * slots
    queue = np.zeros((WINDOW, len(Queue)), np.float32)
    queue[:waiting, Queue.PROMPT] = rng.lognormal(4, 1, waiting)
    queue[:waiting, Queue.PREDICTED] = rng.lognormal(5, 0.9, waiting)
    queue[:waiting, Queue.WAITED] = np.sort(rng.uniform(0, 80, waiting))[::-1]
    queue_id = np.full(WINDOW, -1, np.int64)
    queue_id[:waiting] = np.arange(waiting)
    active = np.zeros((devices, slots, len(Active)), np.float32)
    rows = np.zeros((devices, len(Device)), np.float32)
    for index in range(devices):
        batch = {0: 0, 1: slots}.get(index, int(rng.integers(0, slots + 1)))
        active[index, :batch, Active.KV] = rng.uniform(1, 400, batch)
        active[index, :batch, Active.REMAINING] = rng.lognormal(4, 1, batch)
        rows[index, Device.ACTIVE] = batch
        rows[index, Device.KV_USED] = active[index, :, Active.KV].sum()
        rows[index, Device.FIFO_LENGTH] = 3 * (index == 1)
        rows[index, Device.UP] = index != 2
    rows[:, Device.BATCH_LIMIT] = slots
    rows[:, Device.KV_LIMIT] = kv_limit
    rows[:, Device.LAST_ITERATION] = 0.0213
    clock = np.zeros(len(Clock), np.float32)
    clock[[Clock.NOW, Clock.PERIOD, Clock.LEFT, Clock.HIDDEN]] = (12.5, 500, 3500, hidden)
    return {
        "queue": queue,
        "queue_id": queue_id,
        "devices": rows,
        "active": active,
        "clock": clock,
    }


def view(devices: int = 4, slots: int = 24, waiting: int = 60, hidden: int = 7) -> FrameView:
    return FrameView.from_observation(
        observation(devices, slots, waiting, hidden=hidden),
        title="paper-overload",
        reward=1234.5,
        completed=41,
        rejected=2,
        eel_s=np.linspace(10, 500, 300),
        ttft_s=np.linspace(1, 60, 300),
        eel_limit_s=400.0,
        ttft_limit_s=49.0,
    )


def plain(text: str) -> str:
    return re.sub(r"\x1b\[\d+m", "", text)


def test_the_view_takes_the_visible_requests_and_the_latest_latencies() -> None:
    seen = view()
    assert len(seen.queue) == 60
    assert seen.waiting == 67
    assert (seen.now_s, seen.period, seen.periods_left, seen.hidden) == (12.5, 500, 3500, 7)
    assert len(seen.eel_s) == len(seen.ttft_s) == RECENT
    assert seen.eel_s[-1] == np.float32(500.0)
    assert np.count_nonzero(seen.remaining[1]) == 24
    assert not seen.remaining[0].any()


def test_the_view_outlives_shared_buffers() -> None:
    shared = observation(4, 24, 60)
    seen = FrameView.from_observation(shared)
    before = render_ansi(seen)
    for array in shared.values():
        array[...] = 0
    assert render_ansi(seen) == before


def test_text_names_every_quantity() -> None:
    text = plain(render_ansi(view()))
    for part in (
        "paper-overload", "t = 12.50 s", "period 500/4000", "reward 1,234.5", "completed 41",
        "rejected 2", "24/24", "0/24", "down", "waiting 60 (+7 beyond the window)",
        "EEL", "limit 400 s", "TTFT", "limit 49.0 s", "21 ms",
    ):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize(("devices", "waiting"), [(1, 0), (4, 512), (64, 512), (1000, 3)])
def test_text_stays_on_a_screen(devices: int, waiting: int) -> None:
    lines = plain(render_ansi(view(devices, waiting=waiting))).split("\n")
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 120


def test_bars_are_as_long_as_their_share() -> None:
    lines = plain(render_ansi(view())).split("\n")
    idle = next(line for line in lines if line.startswith("     0 "))
    full = next(line for line in lines if line.startswith("     1 "))
    assert "█" not in idle
    assert "█" * 16 in full


@pytest.mark.parametrize("devices", [1, 4, 8, 9, 64, 256, 1000])
def test_pictures_keep_their_size(devices: int) -> None:
    frame = render_rgb(view(devices, slots=24))
    assert frame.shape == (540, 960, 3)
    assert frame.dtype == np.uint8
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize("waiting", [0, 1, 25, 512])
def test_pictures_draw_each_waiting_request(waiting: int) -> None:
    frame = render_rgb(view(waiting=waiting)).astype(int)
    panel = frame[75:365, 656:944].reshape(-1, 3)
    coloured = (panel.max(axis=1) - panel.min(axis=1) > 60).sum()
    assert coloured >= 4 * waiting
    assert bool(coloured) == bool(waiting)


def test_pictures_without_latencies_and_limits() -> None:
    empty = FrameView.from_observation(observation(2, 8, 0))
    assert render_rgb(empty).shape == (540, 960, 3)
    text = plain(render_ansi(empty))
    assert "no request completed yet" in text
    assert "waiting 0" in text


def test_pictures_are_fast() -> None:
    seen = view(64, 128, 512)
    render_rgb(seen)
    best = min(timed(seen) for _ in range(5))
    assert best < 0.05  # 15 ms on an idle core


def timed(seen: FrameView) -> float:
    start = time.process_time()  # other work on the machine does not count
    render_rgb(seen)
    return time.process_time() - start


def test_without_pillow_the_message_names_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DependencyNotInstalled, match=r"pip install \"llmroute-env\[report\]\""):
        render_rgb(view())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.99, "1.0k"),
        (12_345, "12.3k"),
        (250_000, "250k"),
        (4.1e6, "4.1M"),
    ],
)
def test_counts_are_short(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0 ms"), (0.0032, "3.2 ms"), (0.021, "21 ms"), (1.25, "1.25 s"), (320.4, "320 s")],
)
def test_durations_are_short(value: float, text: str) -> None:
    assert seconds(value) == text


def test_the_environment_renders_both_modes() -> None:
    frames = {}
    for mode in ("ansi", "rgb_array"):
        env = gym.make("llmroute_env:LLMRoute-v0", scenario="paper-overload", render_mode=mode)
        env.reset(seed=3)
        for _ in range(50):
            _, _, _, _, info = env.step(np.ones(env.action_space.shape, np.int64))
        frames[mode] = env.render()
        assert "action_mask" in info
        env.close()
    assert frames["rgb_array"].shape == (540, 960, 3)
    assert "paper-overload" in frames["ansi"]
    assert "period 50/" in plain(frames["ansi"])
