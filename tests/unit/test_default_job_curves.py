"""The picture of the default job's results: an SVG that is well-formed, complete and readable."""

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

FOLDER = Path(__file__).parents[2] / "scripts" / "default_job"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(FOLDER)
    curves = import_module("curves")

SVG = "{http://www.w3.org/2000/svg}"
#: Grounds of pages: white, and the dark one of common code hosts.
GROUNDS = ("#ffffff", "#0d1117")


def line(name: str, *, shift: float = 0.0, num_points: int = 5) -> object:
    """A line that rises by 10 every 20 s, its band 2 to either side."""
    points = [
        curves.Vertex(20.0 * i, 40 + 10 * i + shift, 38 + 10 * i + shift, 42 + 10 * i + shift)
        for i in range(num_points)
    ]
    return curves.Line(name, points)


def draw(*panels: object) -> ElementTree.Element:
    svg = curves.draw(panels, x_label="seconds (s)", note="a note", about="a picture")
    return ElementTree.fromstring(svg)


def texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]


def pairs(shape: ElementTree.Element) -> list[tuple[float, float]]:
    found = [pair.split(",") for pair in shape.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in found]


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(
    ("low", "high", "about", "expected"),
    [
        (0, 266, 8, [0, 50, 100, 150, 200, 250, 300]),
        (34.5, 89.4, 7, [30, 40, 50, 60, 70, 80, 90]),
        (0.12, 0.31, 5, [0.1, 0.15, 0.2, 0.25, 0.3, 0.35]),
        (-7, 12, 4, [-10, -5, 0, 5, 10, 15]),
        (0, 100, 5, [0, 20, 40, 60, 80, 100]),
        (1000, 5000, 4, [1000, 2000, 3000, 4000, 5000]),
    ],
)
def test_ticks_are_round_numbers_that_enclose_the_data(
    low: float, high: float, about: int, expected: list[float]
) -> None:
    assert curves.ticks(low, high, about) == expected


def test_an_axis_without_length_is_refused() -> None:
    with pytest.raises(ValueError, match="no axis runs from 3 to 3"):
        curves.ticks(3, 3)


def test_each_arm_has_one_line_one_band_and_one_colour() -> None:
    svg = draw(curves.Panel("score", [line("async"), line("sync", shift=-5)]))
    lines, bands = list(svg.iter(f"{SVG}polyline")), list(svg.iter(f"{SVG}polygon"))
    assert [li.attrib["stroke"] for li in lines] == list(curves.COLOURS[:2])
    assert [band.attrib["fill"] for band in bands] == list(curves.COLOURS[:2])


def test_a_line_lies_where_its_numbers_say() -> None:
    svg = draw(curves.Panel("score", [line("async")]))
    points = pairs(next(svg.iter(f"{SVG}polyline")))
    steps = [(right - left, above - below) for (left, below), (right, above) in pairwise(points)]
    assert all(step == pytest.approx(steps[0], abs=0.03) for step in steps)
    # y runs over the ticks 30..90 in 300 units: 10 percent are 50 units, upwards
    assert steps[0][1] == pytest.approx(-50, abs=0.03)
    assert points[-1][0] == pytest.approx(points[0][0] + 4 * steps[0][0], abs=0.05)


def test_a_band_encloses_its_line() -> None:
    svg = draw(curves.Panel("score", [line("async")]))
    points = pairs(next(svg.iter(f"{SVG}polyline")))
    edge = pairs(next(svg.iter(f"{SVG}polygon")))
    upper, lower = edge[: len(points)], edge[len(points) :][::-1]
    for (x, y), high, low in zip(points, upper, lower, strict=True):
        assert (high[0], low[0]) == (x, x)
        assert high[1] == pytest.approx(y - 10, abs=0.02)
        assert low[1] == pytest.approx(y + 10, abs=0.02)


def test_axes_titles_and_last_values_are_said_in_words() -> None:
    svg = draw(
        curves.Panel("Exact match (%)", [line("async")], unit=" %"),
        curves.Panel("Reward (%)", [line("async")], height=160),
    )
    said = texts(svg)
    assert {"Exact match (%)", "Reward (%)", "seconds (s)", "a note"} <= set(said)
    assert [text for text in said if text.startswith("async")] == ["async80 %", "async"]
    assert svg.findtext(f"{SVG}title") == "a picture"


def test_names_may_hold_what_xml_reserves() -> None:
    svg = draw(curves.Panel("a < b & c", [line("<B = 4> & more")]))
    assert {"a < b & c", "<B = 4> & more"} <= set(texts(svg))


def test_labels_of_lines_that_end_together_do_not_overlap() -> None:
    names = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    svg = draw(curves.Panel("score", [line(name, shift=-i / 10) for i, name in enumerate(names)]))
    _, top = pairs(next(svg.iter(f"{SVG}polyline")))[-1]
    places = [
        float(text.attrib["y"])
        for text in svg.iter(f"{SVG}text")
        if "".join(text.itertext()) in names
    ]
    assert len(places) == len(names)
    assert all(below - above >= 16.9 for above, below in pairwise(sorted(places)))
    assert min(places) == pytest.approx(top + 4.5, abs=0.1)  # others give way downwards


def test_labels_of_lines_that_end_at_the_bottom_give_way_upwards() -> None:
    flat = [curves.Line(name, [curves.Vertex(1, 0, 0, 9 * i)]) for i, name in enumerate("abc")]
    svg = draw(curves.Panel("score", flat))
    places = [
        float(t.attrib["y"]) for t in svg.iter(f"{SVG}text") if "".join(t.itertext()) in "abc"
    ]
    bottom = pairs(next(svg.iter(f"{SVG}polyline")))[0][1]
    assert sorted(places) == pytest.approx([bottom + 4.5 - 17 * i for i in (2, 1, 0)], abs=0.1)


def test_more_lines_than_colours_are_told_apart_by_dashes() -> None:
    many = [line(f"arm {i}", shift=-i) for i in range(len(curves.COLOURS) + 2)]
    lines = list(draw(curves.Panel("score", many)).iter(f"{SVG}polyline"))
    looks = {(li.attrib["stroke"], li.attrib.get("stroke-dasharray")) for li in lines}
    assert len(looks) == len(many)


def test_all_that_is_drawn_lies_on_the_page() -> None:
    svg = draw(curves.Panel("score", [line("a name of some thirty letters"), line("b", shift=9)]))
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    shapes = [*svg.iter(f"{SVG}polyline"), *svg.iter(f"{SVG}polygon")]
    spots = [spot for shape in shapes for spot in pairs(shape)]
    spots += [(float(t.attrib["x"]), float(t.attrib["y"])) for t in svg.iter(f"{SVG}text")]
    assert all(0 <= x <= width and 0 <= y <= height for x, y in spots)


def test_every_colour_is_readable_on_white_and_on_dark_pages() -> None:
    for ground in GROUNDS:
        assert all(contrast(colour, ground) >= 3 for colour in curves.COLOURS)
        assert contrast(curves.INK, ground) >= 4


def test_the_picture_loads_nothing_and_is_the_same_each_time() -> None:
    panel = curves.Panel("score", [line("async")])
    pictures = {curves.draw([panel], x_label="s", note="", about="p") for _ in range(2)}
    (svg,) = pictures
    assert svg.count("http") == 1  # the name space
    assert not {"url(", "@import", "<script", "<style", "<image"} & set(svg.split())


def test_without_a_point_there_is_no_picture() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(curves.Panel("score", [curves.Line("async", [])]))
