"""Pictures of curves over seeds, as SVG, for the pages of results."""

import io
import statistics
from collections.abc import Collection, Sequence
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["COLOURS", "INK", "Line", "Panel", "draw", "draw_beside"]

#: Each has a contrast of at least 3 against white and against the near-black of dark pages.
COLOURS = ("#2f7fd6", "#d06a0e", "#1c8f55", "#a05fd6", "#d1457c", "#128b99")
INK = "#7a7f87"
#: Lines of more points than this have no dots.
MAX_DOTS = 16
WIDTH, PANEL, FOOT = 8.6, 3.2, 0.6
#: Of the small panels of `draw_beside`.
SMALL, COLUMNS = 1.7, 4
STYLE = {
    # Text stays text, and the same curves give the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "agentrl",
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.3,
    "legend.frameon": False,
    **dict.fromkeys(
        ["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"], INK
    ),
}


class Line(NamedTuple):
    """A line of means, in a band from the lowest to the highest: `points` are places on the x axis,
    each with the values of all seeds."""

    name: str
    points: Collection[tuple[float, Sequence[float]]]


class Panel(NamedTuple):
    """Lines under a title that says what is drawn and in which unit.

    `unit` follows the last value of a line in the legend; None: no value. `height`: a share of the
    usual one.
    """

    title: str
    lines: Sequence[Line]
    unit: str | None = None
    height: float = 1.0


def draw(panels: Sequence[Panel], *, x_label: str, note: str, about: str) -> str:
    """Panels one above the other that share their x axis; `about` is for who cannot see them.
    Raises ValueError without a point."""
    if not any(line.points for panel in panels for line in panel.lines):
        raise ValueError("there is nothing to draw: no line has a point")
    heights = [panel.height for panel in panels]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, PANEL * sum(heights) + FOOT), layout="constrained")
        places = figure.subplots(len(panels), sharex=True, height_ratios=heights, squeeze=False)
        for axes, panel in zip(places[:, 0], panels, strict=True):
            _panel(axes, panel)
        axes.set_xlabel(f"{x_label}\n{note}" if note else x_label)
        return _svg(figure, about)


def draw_beside(
    base: Line, lines: Sequence[Line], *, y: tuple[float, float], label: str, about: str
) -> str:
    """A small panel for each line, in which `base` is drawn too, in grey; `y`: the bounds of all.
    Raises ValueError without a line."""
    if not lines:
        raise ValueError("there is nothing to draw beside the first line")
    num_rows = -(-len(lines) // COLUMNS)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, SMALL * num_rows + FOOT), layout="constrained")
        places = figure.subplots(num_rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
        for axes, line in zip(places.flat, lines, strict=False):
            axes.set_title(line.name)
            _line(axes, base._replace(name=f"{base.name} beside {line.name}"), None, INK, "-")
            _line(axes, line, None, COLOURS[0], "-")
            axes.set_ylim(y)
            axes.set_xlim(left=0)
        for axes in places.flat[len(lines) :]:
            axes.set_axis_off()
        figure.supxlabel(label, fontsize="medium", color=INK)
        return _svg(figure, about)


def _svg(figure: Figure, about: str) -> str:
    file, told = io.StringIO(), {"Title": about, "Date": None}
    figure.savefig(file, format="svg", transparent=True, metadata=told)
    return file.getvalue()


def _panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title)
    for at, line in enumerate(panel.lines):
        if line.points:
            # The colours come again, dashed.
            dashes = "--" if at >= len(COLOURS) else "-"
            _line(axes, line, panel.unit, COLOURS[at % len(COLOURS)], dashes)
    axes.set_xlim(left=0)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), labelcolor="linecolor")


def _line(axes: Axes, line: Line, unit: str | None, colour: str, dashes: str) -> None:
    x, over = zip(*sorted(line.points), strict=True)
    means = [statistics.fmean(values) for values in over]
    label = line.name if unit is None else f"{line.name}: {means[-1]:.3g}{unit}"
    dot = "o" if len(x) <= MAX_DOTS else ""
    axes.plot(
        x, means, dashes, color=colour, label=label, marker=dot, markersize=3.5, gid=line.name
    )
    axes.fill_between(
        x, [min(values) for values in over], [max(values) for values in over],
        color=colour, alpha=0.18, linewidth=0, gid=f"band of {line.name}",
    )  # fmt: skip
