"""Pictures of curves: SVG that is well-formed, complete, readable, and the same each time."""

from xml.etree import ElementTree

import pytest

from scripts.figures import COLOURS, INK, Line, Panel, draw, draw_beside

SVG = "{http://www.w3.org/2000/svg}"
#: Grounds of pages: white, and the dark one of common code hosts.
GROUNDS = ("#ffffff", "#0d1117")


def line(name: str, *, shift: float = 0.0, num_points: int = 5) -> Line:
    """A line that rises by 10 every 20 s, its band 2 to either side."""
    means = [40 + 10 * at + shift for at in range(num_points)]
    return Line(name, [(20.0 * at, [mean - 2, mean + 2]) for at, mean in enumerate(means)])


def drawn(*panels: Panel) -> ElementTree.Element:
    return ElementTree.fromstring(draw(panels, x_label="seconds (s)", note="note", about="picture"))


def texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]


def paths(svg: ElementTree.Element, group: str) -> list[ElementTree.Element]:
    """The paths of what has that name."""
    return [path for each in svg.iter(f"{SVG}g") if each.get("id") == group for path in each]


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_each_arm_has_a_line_and_a_band_of_its_colour() -> None:
    svg = drawn(Panel("score", [line("async"), line("sync", shift=-5)]))
    for name, colour in zip(("async", "sync"), COLOURS, strict=False):
        assert f"stroke: {colour}" in paths(svg, name)[0].attrib["style"]
        assert f"fill: {colour}" in ElementTree.tostring(svg, "unicode")
        assert paths(svg, f"band of {name}")


def test_titles_axes_names_and_last_values_are_said_in_words() -> None:
    svg = drawn(Panel("Match (%)", [line("async")], " %"), Panel("Reward", [line("b < c")]))
    said = texts(svg)
    assert {"Match (%)", "Reward", "seconds (s)", "note", "async: 80 %", "b < c"} <= set(said)
    assert next(svg.iter("{http://purl.org/dc/elements/1.1/}title")).text == "picture"


def test_more_lines_than_colours_are_told_apart_by_dashes() -> None:
    names = [f"arm {at}" for at in range(len(COLOURS) + 2)]
    svg = drawn(Panel("score", [line(name, shift=-at) for at, name in enumerate(names)]))
    assert len({paths(svg, name)[0].attrib["style"] for name in names}) == len(names)


def test_every_colour_is_readable_on_white_and_on_dark_pages() -> None:
    for ground in GROUNDS:
        assert all(contrast(colour, ground) >= 3 for colour in COLOURS)
        assert contrast(INK, ground) >= 4


def test_the_picture_loads_nothing_and_is_the_same_each_time() -> None:
    panel = Panel("score", [line("async"), Line("of no point", [])])
    first, second = (draw([panel], x_label="s", note="", about="p") for _ in range(2))
    assert first == second
    assert not {"@import", "<script", "<image"} & set(first.split())


def test_each_line_has_a_panel_beside_the_first() -> None:
    lines = [line(f"arm {at}", shift=-at) for at in range(5)]
    picture = draw_beside(line("base"), lines, y=(0, 100), label="seconds", about="picture")
    svg = ElementTree.fromstring(picture)
    assert {*(each.name for each in lines), "seconds"} <= set(texts(svg))
    for each in lines:
        assert paths(svg, f"base beside {each.name}")
        assert paths(svg, f"band of {each.name}")
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_beside(line("base"), [], y=(0, 1), label="", about="")


def test_without_a_point_there_is_no_picture() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        drawn(Panel("score", [Line("async", [])]))
