"""A picture of curves with bands, as SVG text: pure, and without any library.

Panels stand one above the other and share the x axis. Each line has a band, a dot at each point
when there are few, and its name beside its end. Colours have a contrast of at least 3 against white
and against the near-black of dark pages, and the ground is left transparent.
"""

import math
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

import msgspec

__all__ = ["COLOURS", "INK", "Line", "Panel", "Vertex", "draw", "ticks"]

COLOURS = ("#2f7fd6", "#d06a0e", "#1c8f55", "#a05fd6", "#d1457c", "#128b99")
INK = "#7a7f87"
WIDTH, LEFT, TOP, BETWEEN, BOTTOM = 860, 46, 34, 66, 66
MAX_DOTS, LABEL_GAP = 16, 17.0
#: Width of a letter of a label, on average, and of what else stands right of the panels.
LETTER, MARGIN = 8.2, 32.0
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\""


class Vertex(msgspec.Struct, frozen=True):
    """A point of a line and the band around it."""

    x: float
    y: float
    low: float
    high: float


class Line(msgspec.Struct, frozen=True):
    """One arm; its points from left to right."""

    name: str
    points: list[Vertex]


class Panel(msgspec.Struct, frozen=True):
    """Curves under a title that says what is drawn and in which unit.

    `unit` follows the last value in a line's label; None: no value.
    """

    title: str
    lines: list[Line]
    unit: str | None = None
    height: int = 300


#: A colour and its dashes, and the line that has them.
_Drawn = tuple[tuple[str, str], Line]


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, the first at or below `low`, the last at or
    above `high`, some `about` of them. Raises ValueError unless low < high."""
    if not low < high:
        raise ValueError(f"no axis runs from {low} to {high}")
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.99)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def draw(panels: Sequence[Panel], *, x_label: str, note: str, about: str) -> str:
    """The picture; `about` is for who cannot see it. Raises ValueError without a point."""
    lines = [(panel, line) for panel in panels for line in panel.lines if line.points]
    if not lines:
        raise ValueError("there is nothing to draw: no line has a point")
    x_max = max(v.x for _, line in lines for v in line.points) or 1.0
    x_ticks = [tick for tick in ticks(0.0, x_max, about=8) if tick <= x_max]
    longest = max(len(line.name) + len(_value(panel, line)) for panel, line in lines)
    right = WIDTH - MARGIN - LETTER * longest
    bodies, bottom = [], TOP - BETWEEN
    for panel in panels:
        top = bottom + BETWEEN
        bottom = top + panel.height
        bodies.append(_panel(panel, _Frame(top, bottom, right, x_max, _y_ticks(panel)), x_ticks))
    centre = (LEFT + right) / 2
    bodies.append(_text(centre, bottom + 40, x_label, anchor="middle"))
    bodies.append(_text(centre, bottom + 58, note, anchor="middle", size="11.5"))
    height = bottom + BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" {FONT} fill="{INK}">\n'
        f"<title>{escape(about)}</title>\n" + "\n".join(bodies) + "\n</svg>\n"
    )


class _Frame:
    """Where values of a panel lie on the page; x runs from 0."""

    def __init__(
        self, top: float, bottom: float, right: float, x_max: float, y_ticks: Sequence[float]
    ) -> None:
        self.top, self.bottom, self.right, self.y_ticks = top, bottom, right, y_ticks
        self._x_scale = (right - LEFT) / x_max
        self._y_scale = (bottom - top) / (y_ticks[-1] - y_ticks[0])

    def x(self, value: float) -> float:
        return round(LEFT + value * self._x_scale, 2)

    def y(self, value: float) -> float:
        return round(self.bottom - (value - self.y_ticks[0]) * self._y_scale, 2)

    def path(self, pairs: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(x):g},{self.y(y):g}" for x, y in pairs)


def _y_ticks(panel: Panel) -> list[float]:
    edges = [edge for line in panel.lines for v in line.points for edge in (v.low, v.high)]
    low, high = min(edges, default=0.0), max(edges, default=0.0)
    return ticks(low, max(high, low + 1e-6), about=panel.height // 40)


def _panel(panel: Panel, frame: _Frame, x_ticks: Sequence[float]) -> str:
    parts = [_text(LEFT, frame.top - 14, panel.title, font_weight="600")]
    for tick in frame.y_ticks:
        y = frame.y(tick)
        parts.append(_rule(LEFT, y, frame.right, y, 0.55 if tick == frame.y_ticks[0] else 0.2))
        parts.append(_text(LEFT - 8, y + 4.5, _number(tick), anchor="end"))
    for tick in x_ticks:
        x = frame.x(tick)
        parts.append(_rule(x, frame.bottom, x, frame.bottom + 5, 0.55))
        parts.append(_text(x, frame.bottom + 19, _number(tick), anchor="middle"))
    drawn = [(_colour(at), line) for at, line in enumerate(panel.lines) if line.points]
    parts += [_band(line, colour, frame) for (colour, _), line in drawn]
    parts += [_line(line, colour, dash, frame) for (colour, dash), line in drawn]
    parts += _labels(panel, drawn, frame)
    return "\n".join(parts)


def _colour(at: int) -> tuple[str, str]:
    """Colour and dashes of line number `at`: the colours come again, dashed."""
    return COLOURS[at % len(COLOURS)], ' stroke-dasharray="6 4"' if at >= len(COLOURS) else ""


def _band(line: Line, colour: str, frame: _Frame) -> str:
    edge = [(v.x, v.high) for v in line.points] + [(v.x, v.low) for v in reversed(line.points)]
    return f'<polygon points="{frame.path(edge)}" fill="{colour}" fill-opacity="0.18"/>'


def _line(line: Line, colour: str, dash: str, frame: _Frame) -> str:
    path = frame.path((v.x, v.y) for v in line.points)
    shape = 'stroke-width="2.2" stroke-linejoin="round" stroke-linecap="round"'
    drawn = f'<polyline points="{path}" fill="none" stroke="{colour}" {shape}{dash}/>'
    for v in line.points if len(line.points) <= MAX_DOTS else []:
        drawn += f'<circle cx="{frame.x(v.x):g}" cy="{frame.y(v.y):g}" r="3" fill="{colour}"/>'
    return drawn


def _labels(panel: Panel, drawn: Sequence[_Drawn], frame: _Frame) -> list[str]:
    """Name and last value of each line, right of the panel, moved apart where they would meet."""
    ends = [(frame.y(line.points[-1].y), colour, line) for (colour, _), line in drawn]
    ends.sort(key=lambda end: end[0])
    places: list[float] = []
    for y, _, _ in ends:
        places.append(max(y, places[-1] + LABEL_GAP) if places else y)
    limit = frame.bottom
    for at in reversed(range(len(places))):
        places[at] = limit = min(places[at], limit)
        limit -= LABEL_GAP
    parts = []
    for (y, colour, line), place in zip(ends, places, strict=True):
        x = frame.x(line.points[-1].x)
        leader = f'stroke="{colour}" stroke-opacity="0.6" stroke-dasharray="1 4" fill="none"'
        road = f"M{x + 6:g} {y:g}H{max(x + 6, frame.right):g}L{frame.right + 13:g} {place:g}"
        parts.append(f'<path d="{road}" {leader}/>')
        parts.append(
            f'<text x="{frame.right + 16:g}" y="{place + 4.5:g}" fill="{colour}" font-size="13">'
            f'<tspan font-weight="600">{escape(line.name)}</tspan>'
            f'<tspan dx="6">{escape(_value(panel, line))}</tspan></text>'
        )
    return parts


def _value(panel: Panel, line: Line) -> str:
    """The last value of a line, where its label has one."""
    return "" if panel.unit is None else f"{_number(line.points[-1].y, 3)}{panel.unit}"


def _rule(x: float, y: float, x2: float, y2: float, opacity: float) -> str:
    return f'<path d="M{x:g} {y:g}L{x2:g} {y2:g}" stroke="{INK}" stroke-opacity="{opacity}"/>'


def _text(
    x: float, y: float, text: str, anchor: str = "start", size: str = "13", **more: str
) -> str:
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}"{extra}'
    return f"<text {place}>{escape(text)}</text>"


def _number(value: float, digits: int = 6) -> str:
    """The value with at most `digits` significant digits, thousands apart."""
    return f"{float(f'{value:.{digits}g}'):,.10g}"
