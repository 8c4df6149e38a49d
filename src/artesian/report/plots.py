"""Figures as SVG text: the same curves give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from artesian.errors import MissingExtra
from artesian.report.curves import Curve
from artesian.report.exported import Mixtures, Scores

SETTINGS = {"svg.hashsalt": "artesian", "svg.fonttype": "none", "font.size": 9}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")  # apart for all eyes
DASHES = ("-", "--", "-.", ":")
PANEL = 4.2, 3.2  # inches
MOST_NAMES = 24  # clusters whose names have room beside a panel
MOST_NUMBERS = 64  # scores that have room in one


def lines(
    panels: Mapping[str, Mapping[str, Curve]],
    units: Mapping[str, str],
    along: str = "uploads",
    alike: Sequence[str] = (),
) -> str:
    """Panels, a line for each label; empty curves are left out, and so are panels without any.

    `along` is what the horizontal axis shows; the panels in `alike` have the same vertical one.
    """
    shown = {title: {k: c for k, c in curves.items() if not c.empty} for title, curves in panels.items()}
    shown = {title: curves for title, curves in shown.items() if curves}
    styles = _styles(dict.fromkeys(label for curves in panels.values() for label in curves))
    across, down = _grid(len(shown))
    matplotlib, figure = _figure(PANEL[0] * across, PANEL[1] * down)
    with matplotlib.rc_context(SETTINGS):
        drawn = dict(zip(shown, _axes(figure, len(shown)), strict=True))
        for title, curves in shown.items():
            axes = drawn[title]
            for label, curve in curves.items():
                axes.plot(curve.x, curve.mean, label=_plain(label), marker=".", markersize=3, **styles[label])
                if curve.deviation.any():
                    low, high = curve.band
                    axes.fill_between(curve.x, low, high, color=styles[label]["color"], alpha=0.15, linewidth=0)
            axes.set(title=title, xlabel=along, ylabel=units[title])
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
        _align([drawn[title] for title in alike if title in drawn])
        return _svg(figure)


def heatmaps(panels: Mapping[str, Scores]) -> str:
    """How every cluster does on every distribution: a panel each, on one scale of colours."""
    across, down = _grid(len(panels))
    matplotlib, figure = _figure(PANEL[0] * across, PANEL[1] * down)
    low = min(float(scores.values.min()) for scores in panels.values())
    high = max(float(scores.values.max()) for scores in panels.values())
    with matplotlib.rc_context(SETTINGS):
        drawn = _axes(figure, len(panels))
        for axes, (title, scores) in zip(drawn, panels.items(), strict=True):
            image = axes.imshow(scores.values, vmin=low, vmax=high, cmap="viridis", aspect="auto")
            axes.set(title=_plain(title), xlabel="distribution", ylabel="cluster")
            axes.set_xticks(range(len(scores.distributions)), scores.distributions)
            if len(scores.clusters) <= MOST_NAMES:
                axes.set_yticks(range(len(scores.clusters)), scores.clusters)
            if scores.values.size <= MOST_NUMBERS:
                _write_numbers(axes, scores, (low + high) / 2)
        figure.colorbar(image, ax=drawn, label="score")
        return _svg(figure)


def mixture_panels(found: Mapping[str, Mixtures]) -> str:
    """For every method, estimated shares against true ones, and both of the largest over uploads."""
    matplotlib, figure = _figure(2 * PANEL[0], PANEL[1] * len(found))
    with matplotlib.rc_context(SETTINGS):
        grid = figure.subplots(len(found), 2, squeeze=False)
        for (left, right), (label, one) in zip(grid, found.items(), strict=True):
            left.plot([0, 1], [0, 1], color="#999999", linewidth=0.8)
            left.plot(one.true, one.estimated, ".", color=COLOURS[0], alpha=0.5, markersize=4)
            left.set(
                title=_plain(f"{label}: last upload of each client"), xlabel="true share", ylabel="estimated share"
            )
            for curve, name, style in zip(one.largest, ("true", "estimated"), ("--", "-"), strict=True):
                right.plot(curve.x, curve.mean, style, label=name, color=COLOURS[name == "estimated"])
            right.set(title=_plain(f"{label}: largest true share"), xlabel="uploads", ylabel="share")
            right.set_ylim(0, 1.02)
            right.legend(fontsize=8)
            for axes in (left, right):
                axes.grid(alpha=0.3)
        return _svg(figure)


def bars(spent: Mapping[str, Mapping[str, float]]) -> str:
    """Shares of time: a bar for each label, a piece for each part."""
    parts = dict.fromkeys(part for pieces in spent.values() for part, seconds in pieces.items() if seconds)
    matplotlib, figure = _figure(9.0, 1.2 + 0.35 * len(spent))
    with matplotlib.rc_context(SETTINGS):
        (axes,) = _axes(figure, 1)
        left, names = dict.fromkeys(spent, 0.0), [_plain(label) for label in spent]
        for part, colour in zip(parts, cycle((*COLOURS, "#999999", "#f0e442", "#8c564b", "#984ea3")), strict=False):
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


def _grid(count: int) -> tuple[int, int]:
    """How many panels stand side by side, and in how many rows: beyond three, in pairs."""
    across = max(count, 1) if count <= 3 else 2
    return across, max(1, -(-count // across))


def _axes(figure: Any, count: int) -> list[Any]:
    if not count:
        return []
    across, down = _grid(count)
    every = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in every[count:]:
        spare.remove()
    return every[:count]


def _align(axes: Sequence[Any]) -> None:
    """Give panels the same vertical range."""
    limits = [one.get_ylim() for one in axes]
    for one in axes:
        one.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _write_numbers(axes: Any, scores: Scores, middle: float) -> None:
    """The scores themselves, light on dark and dark on light."""
    for (row, column), value in np.ndenumerate(scores.values):
        colour = "white" if value < middle else "black"
        axes.text(column, row, f"{value:.3g}", ha="center", va="center", color=colour, fontsize=8)


def _svg(figure: Any) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
