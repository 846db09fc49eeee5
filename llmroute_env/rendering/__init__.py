"""Frames of the cluster that a person can read: text and pictures.

The environment builds a `FrameView` and hands it to one of the two renderers; Pillow is
imported only when a picture is asked for.
"""

from __future__ import annotations

from llmroute_env.rendering.picture import render_rgb
from llmroute_env.rendering.text import render_ansi
from llmroute_env.rendering.view import FrameView

__all__ = ["FrameView", "render_ansi", "render_rgb"]
