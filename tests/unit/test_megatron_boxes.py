"""Flat ranges as boxes, and what boxes have in common, against numpy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.torch_dist import make_up
from agentrl.learner.megatron.boxes import Box, cut, overlap

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def view(array: np.ndarray, box: Box) -> np.ndarray:
    offset, sizes = box
    return array[tuple(slice(o, o + s) for o, s in zip(offset, sizes, strict=True))]


@st.composite
def ranges(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = draw(shapes)
    start = draw(st.integers(0, int(np.prod(shape)) - 1))
    return shape, start, draw(st.integers(start + 1, int(np.prod(shape))))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, Box]:
    shape = draw(shapes)

    def box() -> Box:
        offset = tuple(draw(st.integers(0, size - 1)) for size in shape)
        sizes = tuple(draw(st.integers(1, s - o)) for o, s in zip(offset, shape, strict=True))
        return offset, sizes

    return shape, box(), box()


@given(ranges())
def test_the_boxes_of_a_range_hold_its_elements_in_their_order(
    given: tuple[tuple[int, ...], int, int],
) -> None:
    shape, start, stop = given
    numbers = np.arange(np.prod(shape)).reshape(shape)
    boxes = list(cut(shape, start, stop))
    found = np.concatenate([view(numbers, box).ravel() for box in boxes])
    assert found.tolist() == list(range(start, stop))
    assert len(boxes) <= 2 * len(shape) - 1


@given(pairs())
def test_two_boxes_have_in_common_what_lies_in_both(
    given: tuple[tuple[int, ...], Box, Box],
) -> None:
    shape, one, other = given
    numbers = np.arange(np.prod(shape)).reshape(shape)
    ours, theirs = view(numbers, one), view(numbers, other)
    common = overlap(one, other)
    wanted = sorted(set(ours.ravel().tolist()) & set(theirs.ravel().tolist()))
    if common is None:
        assert wanted == []
    else:
        assert ours[common[0]].ravel().tolist() == wanted
        assert theirs[common[1]].ravel().tolist() == wanted


@st.composite
def divisions(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """An array cut again and again, and at times a box of it that is another's, or has moved."""
    shape = draw(shapes)
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        offset, sizes = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, sizes[axis]))
        low, high = ((*sizes[:axis], size, *sizes[axis + 1 :]) for size in (at, sizes[axis] - at))
        boxes += [(offset, low), ((*offset[:axis], offset[axis] + at, *offset[axis + 1 :]), high)]
    for _ in range(draw(st.integers(0, 2))):
        _, sizes = boxes[draw(st.integers(0, len(boxes) - 1))]
        moved = tuple(draw(st.integers(0, s - o)) for o, s in zip(sizes, shape, strict=True))
        boxes[draw(st.integers(0, len(boxes) - 1))] = (moved, sizes)
    return shape, boxes


@given(divisions())
def test_boxes_make_up_an_array_where_each_element_is_in_one(
    given: tuple[tuple[int, ...], list[Box]],
) -> None:
    shape, boxes = given
    times = np.zeros(shape, dtype=int)
    for box in boxes:
        view(times, box)[...] += 1
    assert make_up(shape, boxes) == bool((times == 1).all())
