"""Bars as SVG, for GitHub's light and dark pages: a small picture needs no library."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import NamedTuple

ROW, BAR, LEFT, RIGHT, WIDTH, TOP = 24, 14, 250, 60, 860, 44
"""In pixels."""


class Theme(NamedTuple):
    """Colours."""

    text: str
    muted: str
    line: str
    bar: str
    main: str


THEMES: Mapping[str, Theme] = {
    "light": Theme("#1f2328", "#59636e", "#d1d9e0", "#0969da", "#8250df"),
    "dark": Theme("#f0f6fc", "#9198a1", "#3d444d", "#4493f8", "#ab7df8"),
}


class Bar(NamedTuple):
    """A ratio, and between which ones its rounds lay."""

    name: str
    value: float
    lowest: float
    highest: float


def svg(title: str, bars: list[Bar], theme: Theme) -> str:
    """The first bar is what the others differ from. The background is the page's."""
    most = max(bar.highest for bar in bars)
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + ROW * len(bars) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"',
        'role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<text x="8" y="20" font-size="15" font-weight="600" fill="{theme.text}">{escape(title)}</text>',
    ]
    bottom = TOP + ROW * len(bars)
    for tick in _ticks(most):
        x = LEFT + tick * scale
        lines += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="{theme.line}"/>',
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="{theme.muted}">{tick:g}</text>',
        ]
    for number, bar in enumerate(bars):
        y, colour = TOP + ROW * number, theme.bar if number else theme.main
        middle, low, high = y + BAR / 2, LEFT + bar.lowest * scale, LEFT + max(bar.highest, bar.value) * scale
        lines += [
            f'<text x="{LEFT - 10}" y="{y + 12}" text-anchor="end" fill="{theme.text}">{escape(bar.name)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{bar.value * scale:.1f}" height="{BAR}" rx="2" fill="{colour}"/>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="{theme.muted}"/>',
            f'<text x="{high + 8:.1f}" y="{y + 12}" fill="{theme.muted}">{bar.value:.1f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def _ticks(most: float) -> list[float]:
    """Round numbers from nothing up, some five of them."""
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000) if most / step <= 6)
    return [step * number for number in range(int(most / step) + 1)]
