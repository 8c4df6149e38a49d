"""Figures as SVG text: the same curves give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import cycle
from typing import Any

from artesian.errors import MissingExtra
from artesian.report.curves import Curve

SETTINGS = {"svg.hashsalt": "artesian", "svg.fonttype": "none", "font.size": 9}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")  # apart for all eyes
DASHES = ("-", "--", "-.", ":")
PANEL = 4.2, 3.2  # inches


def lines(panels: Mapping[str, Mapping[str, Curve]], units: Mapping[str, str]) -> str:
    """Panels side by side, a line for each label; empty curves are left out, and so are panels without any."""
    shown = {title: {k: c for k, c in curves.items() if not c.empty} for title, curves in panels.items()}
    shown = {title: curves for title, curves in shown.items() if curves}
    styles = _styles(dict.fromkeys(label for curves in panels.values() for label in curves))
    matplotlib, figure = _figure(PANEL[0] * max(len(shown), 1), PANEL[1])
    with matplotlib.rc_context(SETTINGS):
        for axes, (title, curves) in zip(_axes(figure, len(shown)), shown.items(), strict=True):
            for label, curve in curves.items():
                axes.plot(curve.x, curve.mean, label=_plain(label), marker=".", markersize=3, **styles[label])
                if curve.deviation.any():
                    low, high = curve.band
                    axes.fill_between(curve.x, low, high, color=styles[label]["color"], alpha=0.15, linewidth=0)
            axes.set(title=title, xlabel="uploads", ylabel=units[title])
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
        return _svg(figure)


def bars(spent: Mapping[str, Mapping[str, float]]) -> str:
    """Shares of time: a bar for each label, a piece for each part."""
    parts = dict.fromkeys(part for pieces in spent.values() for part, seconds in pieces.items() if seconds)
    matplotlib, figure = _figure(9.0, 1.2 + 0.35 * len(spent))
    with matplotlib.rc_context(SETTINGS):
        (axes,) = _axes(figure, 1)
        left, names = dict.fromkeys(spent, 0.0), [_plain(label) for label in spent]
        for part, colour in zip(parts, cycle((*COLOURS, "#999999", "#f0e442")), strict=False):
            shares = {label: pieces.get(part, 0.0) / sum(pieces.values()) for label, pieces in spent.items()}
            axes.barh(names, list(shares.values()), left=list(left.values()), color=colour, label=part)
            left = {label: left[label] + share for label, share in shares.items()}
        axes.invert_yaxis()
        axes.set(xlim=(0, 1), xlabel="share of the time")
        figure.legend(loc="outside upper center", ncols=min(len(parts), 9), fontsize=8)
        return _svg(figure)


def _styles(labels: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """A colour and a dash for each label: neighbours differ in both, so one shows below the other."""
    return {
        label: {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]}
        for i, label in enumerate(labels)
    }


def _plain(label: str) -> str:
    """A label as it is: dollars are no formula."""
    return label.replace("$", r"\$")


def _figure(width: float, height: float) -> tuple[Any, Any]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtra("matplotlib", "report") from None
    return matplotlib, Figure(figsize=(width, height), layout="constrained")


def _axes(figure: Any, count: int) -> list[Any]:
    return list(figure.subplots(1, count, squeeze=False)[0]) if count else []


def _svg(figure: Any) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
