"""``render_mode="rgb_array"``: the cluster as a picture of 960 x 540 pixels, drawn with Pillow."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from llmroute_env.rendering.canvas import (
    AGING,
    FRESH,
    GREY,
    HEIGHT,
    KV,
    LATE,
    LIMIT,
    PAPER,
    SLOTS,
    TRACK,
    WIDTH,
    Box,
    Colour,
    shortened,
    write,
)
from llmroute_env.rendering.devices import draw_devices
from llmroute_env.rendering.view import RECENT, Floats, FrameView, seconds
from llmroute_env.spaces import Queue

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

_CLUSTER: Box = (16, 52, 632, 396)
_QUEUE: Box = (656, 52, 944, 396)
_EEL: Box = (16, 412, 472, 528)
_TTFT: Box = (488, 412, 944, 528)


def render_rgb(view: FrameView) -> NDArray[np.uint8]:
    """Draw ``view``.

    Returns:
        (540, 960, 3) uint8.

    Raises:
        gymnasium.error.DependencyNotInstalled: Pillow is absent.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise DependencyNotInstalled(
            'render_mode="rgb_array" needs Pillow: pip install "llmroute-env[report]"'
        ) from error
    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    _draw_header(draw, view)
    draw_devices(draw, _CLUSTER, view)
    _draw_queue(draw, view)
    _draw_latency(draw, _EEL, "end-to-end latency (EEL)", view.eel_s, view.eel_limit_s, SLOTS)
    _draw_latency(draw, _TTFT, "time to first token (TTFT)", view.ttft_s, view.ttft_limit_s, KV)
    return np.array(image, dtype=np.uint8)


def _draw_header(draw: ImageDraw, view: FrameView) -> None:
    write(draw, (16, 12), shortened(view.title or "LLMRoute", 38), 18)
    total = view.period + view.periods_left
    period = f"{view.period:,} of {total:,}" if view.periods_left else f"{view.period:,}, draining"
    line = (
        f"t = {view.now_s:,.2f} s    period {period}    reward {view.reward:,.0f}    "
        f"completed {view.completed:,}    rejected {view.rejected:,}"
    )
    write(draw, (WIDTH - 16, 15), line, 14, anchor="ra")
    draw.line((16, 40, WIDTH - 16, 40), fill=TRACK, width=2)


@lru_cache(maxsize=1)
def _age_colours() -> list[Colour]:
    """65 steps: blue when fresh, yellow at half of the limit, red from the limit on."""
    shares = np.linspace(0.0, 1.0, 65)
    anchors = np.array([FRESH, AGING, LATE], np.float64)
    channels = [np.interp(shares, (0.0, 0.5, 1.0), anchors[:, channel]) for channel in range(3)]
    return [(int(red), int(green), int(blue)) for red, green, blue in zip(*channels, strict=True)]


def _age_colour(age: float) -> Colour:
    """Colour of a request whose age is ``age`` times the limit."""
    return _age_colours()[int(64 * min(max(age, 0.0), 1.0))]


def _draw_queue(draw: ImageDraw, view: FrameView) -> None:
    """A square per waiting request, oldest first: colour is age, size is predicted length."""
    left, top, right, bottom = _QUEUE
    hidden = f"  + {view.hidden:,} beyond the window" if view.hidden else ""
    write(draw, (left, top), f"{len(view.queue):,} waiting{hidden}")
    scale = view.age_scale_s
    strip_y, steps = bottom - 24, 64
    for step in range(steps):
        x0 = left + (right - left) * step / steps
        x1 = left + (right - left) * (step + 1) / steps
        draw.rectangle((x0, strip_y, x1, strip_y + 6), fill=_age_colour(step / (steps - 1)))
    limit = "limit " if view.ttft_limit_s is not None else ""
    write(draw, (left, strip_y + 10), "age 0 s", 11, GREY)
    write(draw, (right, strip_y + 10), f"{limit}{seconds(scale)}", 11, GREY, "ra")
    middle = (left + right) / 2
    write(draw, (middle, strip_y + 10), "size: predicted length", 11, GREY, "ma")
    if not len(view.queue):
        write(draw, (middle, (top + bottom) / 2), "empty", 14, GREY, "mm")
        return
    width, height = right - left, strip_y - 12 - (top + 24)
    pitch = min(24.0, np.sqrt(width * height / len(view.queue)))
    columns = max(int(width / pitch), 1)
    while -(-len(view.queue) // columns) * (width / columns) > height:
        columns += 1
    pitch = min(width / columns, 24.0)
    predicted = view.queue[:, Queue.PREDICTED]
    sizes = np.sqrt(predicted / max(float(predicted.max()), 1e-9))
    ages = (view.ages_s / scale).tolist()
    for index, (age, size) in enumerate(zip(ages, sizes.tolist(), strict=True)):
        x = left + (index % columns + 0.5) * pitch
        y = top + 24 + (index // columns + 0.5) * pitch
        half = max(0.46 * pitch * size, 1.0)
        draw.rectangle((x - half, y - half, x + half, y + half), fill=_age_colour(age))


def _draw_latency(
    draw: ImageDraw, box: Box, name: str, values: Floats, limit_s: float | None, colour: Colour
) -> None:
    """Latest completions as a line, the objective's limit dashed where it fits the scale."""
    left, top, right, bottom = box
    write(draw, (left, top), name)
    chart: Box = (left, top + 22, right - 66, bottom)
    draw.rectangle(chart, fill=(255, 255, 255), outline=TRACK)
    if not len(values):
        middle = ((left + right - 66) / 2, (top + 22 + bottom) / 2)
        write(draw, middle, "no request completed yet", 13, GREY, "mm")
        return
    numbers = f"last {seconds(float(values[-1]))}   mean {seconds(float(values.mean()))}"
    write(draw, (right - 66, top + 1), numbers, 12, GREY, "ra")
    peak = max(float(values.max()), 1e-9)
    # A limit far above the values would flatten them; it is then left out of the scale.
    shows_limit = limit_s is not None and limit_s <= 3 * peak
    top_value = 1.1 * max(peak, limit_s if shows_limit and limit_s is not None else 0.0)
    span = chart[3] - chart[1] - 2

    def height(value: float) -> float:
        return chart[3] - 1 - value / top_value * span

    step = (chart[2] - chart[0] - 8) / (RECENT - 1)
    first = chart[2] - 4 - step * (len(values) - 1)
    points = [(first + i * step, height(float(v))) for i, v in enumerate(values)]
    if len(points) > 1:
        draw.line(points, fill=colour, width=2, joint="curve")
    x, y = points[-1]
    draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour)
    if shows_limit and limit_s is not None:
        y = height(limit_s)
        for x in range(int(chart[0]) + 2, int(chart[2]) - 4, 10):
            draw.line((x, y, x + 5, y), fill=LIMIT, width=1)
        write(draw, (right - 60, y), f"limit {seconds(limit_s)}", 11, LIMIT, "lm")
    if not shows_limit or abs(height(peak) - y) > 14:
        write(draw, (right - 60, height(peak)), f"max {seconds(peak)}", 11, GREY, "lm")
