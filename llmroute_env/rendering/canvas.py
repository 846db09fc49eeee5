"""What the panels of a picture share: size, colours, text and bars."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

WIDTH, HEIGHT = 960, 540

Colour = tuple[int, int, int]
Box = tuple[float, float, float, float]  # left, top, right, bottom

# Okabe and Ito's colours, which colour-blind people tell apart.
PAPER: Colour = (250, 250, 248)
INK: Colour = (34, 38, 46)
GREY: Colour = (120, 126, 136)
TRACK: Colour = (226, 229, 233)
SLOTS: Colour = (0, 114, 178)
KV: Colour = (0, 158, 115)
FIFO: Colour = (204, 121, 167)
LIMIT: Colour = (213, 94, 0)
FRESH: Colour = (86, 180, 233)
AGING: Colour = (240, 200, 66)
LATE: Colour = (200, 60, 20)


@lru_cache(maxsize=16)
def font(size: int) -> Any:
    """Pillow's built-in font, the same on every machine."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def write(
    draw: ImageDraw,
    place: tuple[float, float],
    text: str,
    size: int = 13,
    colour: Colour = INK,
    anchor: str = "la",
) -> None:
    """Write ``text`` at ``place``, whose meaning is Pillow's two-letter ``anchor``."""
    draw.text(place, text, fill=colour, font=font(size), anchor=anchor)


def shortened(text: str, length: int) -> str:
    """``text`` in at most ``length`` characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def draw_bar(draw: ImageDraw, box: Box, share: float, colour: Colour) -> None:
    """A horizontal bar, full at ``share`` 1."""
    left, top, right, bottom = box
    draw.rectangle((left, top, right, bottom), fill=TRACK)
    share = min(max(share, 0.0), 1.0)
    if share > 0.0:
        draw.rectangle((left, top, left + max(share * (right - left), 1.0), bottom), fill=colour)
