"""The picture's panel of devices: batch slots, KV tokens and FIFO of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmroute_env.rendering.canvas import (
    FIFO,
    GREY,
    INK,
    KV,
    LATE,
    SLOTS,
    TRACK,
    Box,
    draw_bar,
    font,
    write,
)
from llmroute_env.rendering.view import Floats, FrameView, count, seconds
from llmroute_env.spaces import Device

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw


def draw_devices(draw: ImageDraw, box: Box, view: FrameView) -> None:
    """Devices as rows while they are few, as cells of a grid when they are many."""
    left, top, right, bottom = box
    devices = view.devices
    active = devices[:, Device.ACTIVE].sum()
    plural = "s" if len(devices) != 1 else ""
    write(draw, (left, top), f"{len(devices)} device{plural}, {active:,.0f} active requests")
    legend_x = right
    few = len(devices) <= 8
    slots = "batch slots, by tokens to go" if few else "batch slots"
    for name, colour in (("FIFO", FIFO), ("KV tokens", KV), (slots, SLOTS)):
        write(draw, (legend_x, top), name, 12, GREY, "ra")
        legend_x -= font(12).getlength(name) + 14
        draw.rectangle((legend_x, top + 3, legend_x + 9, top + 12), fill=colour)
        legend_x -= 12
    area: Box = (left, top + 24, right, bottom)
    if few:
        _draw_rows(draw, area, view)
    else:
        _draw_cells(draw, area, devices)


def _draw_rows(draw: ImageDraw, area: Box, view: FrameView) -> None:
    """One row per device; a batch slot's height is its predicted remaining length."""
    left, top, right, bottom = area
    height = min((bottom - top) / len(view.devices), 80.0)
    bar_left, bar_right = left + 34, right - 178
    longest = max(float(view.remaining.max(initial=0.0)), 1.0)
    for index, device in enumerate(view.devices.tolist()):
        y = top + index * height
        up = device[Device.UP] > 0
        write(draw, (left, y + 0.4 * height), f"{index}", 18, INK if up else LATE, "lm")
        middle = y + 0.58 * height
        slots: Box = (bar_left, y + 2, bar_right, middle)
        _draw_slots(draw, slots, view.remaining[index], int(device[Device.BATCH_LIMIT]), longest)
        kv: Box = (bar_left, middle + 4, bar_right, y + 0.88 * height)
        draw_bar(draw, kv, device[Device.KV_USED] / device[Device.KV_LIMIT], KV)
        x, size = bar_right + 10, 13 if height > 45 else 11
        slot_text = f"{device[Device.ACTIVE]:.0f}/{device[Device.BATCH_LIMIT]:.0f} slots"
        kv_text = f"{count(device[Device.KV_USED])}/{count(device[Device.KV_LIMIT])} KV"
        write(draw, (x, y + 0.3 * height), slot_text, size, SLOTS, "lm")
        write(draw, (x, y + 0.74 * height), kv_text, size, KV, "lm")
        fifo = device[Device.FIFO_LENGTH]
        colour = FIFO if fifo > 0 else GREY
        write(draw, (right, y + 0.3 * height), f"FIFO {fifo:.0f}", size, colour, "rm")
        state = seconds(device[Device.LAST_ITERATION]) if up else "down"
        write(draw, (right, y + 0.74 * height), state, size, GREY if up else LATE, "rm")


def _draw_slots(draw: ImageDraw, box: Box, remaining: Floats, limit: int, longest: float) -> None:
    """A tick per occupied batch slot, in admission order, as high as it has tokens to go."""
    left, top, right, bottom = box
    draw.rectangle(box, fill=TRACK)
    pitch = (right - left) / max(limit, 1)
    gap = 1.0 if pitch >= 4 else 0.0
    heights = np.sqrt(remaining[:limit] / longest)  # the root keeps short ones visible
    for slot in np.flatnonzero(heights > 0):
        x = left + slot * pitch
        y = bottom - max(float(heights[slot]) * (bottom - top), 2.0)
        draw.rectangle((x + gap / 2, y, max(x + pitch - gap, x + 1), bottom), fill=SLOTS)


def _draw_cells(draw: ImageDraw, area: Box, devices: Floats) -> None:
    """A grid: both bars and a FIFO strip in each cell, numbers as long as there is room."""
    left, top, right, bottom = area
    total = len(devices)
    width, height = right - left, bottom - top
    columns = int(np.ceil(np.sqrt(total * height / width * 1.8)))
    columns = min(max(columns, 1), total)
    rows = -(-total // columns)
    cell_w, cell_h = width / columns, min(height / rows, 80.0)
    pad = 4.0 if cell_w > 40 else 1.0
    with_text = cell_w >= 68 and cell_h >= 34
    for index, device in enumerate(devices.tolist()):
        x = left + (index % columns) * cell_w
        y = top + (index // columns) * cell_h
        x1 = x + cell_w - 2 * pad
        if with_text:
            up = device[Device.UP] > 0
            fifo = device[Device.FIFO_LENGTH]
            write(draw, (x, y), f"{index}", 11, INK if up else LATE)
            if not up:
                write(draw, (x1, y), "down", 10, LATE, "ra")
            elif fifo > 0:
                write(draw, (x1, y), f"FIFO {count(fifo)}", 10, FIFO, "ra")
            y += 13
        inner = cell_h - (13 if with_text else 0) - pad
        bar = max(inner / 3 - 1, 1.0)
        fifo_share = device[Device.FIFO_LENGTH] / device[Device.BATCH_LIMIT]
        shares = (
            (device[Device.ACTIVE] / device[Device.BATCH_LIMIT], SLOTS),
            (device[Device.KV_USED] / device[Device.KV_LIMIT], KV),
            (fifo_share, FIFO),
        )
        for line, (share, colour) in enumerate(shares):
            y0 = y + line * (bar + 1)
            draw_bar(draw, (x, y0, x1, y0 + bar - 1), share, colour)
