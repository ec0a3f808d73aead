"""Packing, balancing and splitting lose nothing, repeat nothing and respect their bounds."""

from hypothesis import given
from hypothesis import strategies as st

from agentrl.learner.packing import balance, first_fit_decreasing, split_evenly

lengths = st.lists(st.integers(1, 100), max_size=60)


@given(lengths, st.integers(1, 300))
def test_first_fit_places_every_item_once_within_capacity_or_alone(
    items: list[int], capacity: int
) -> None:
    bins = first_fit_decreasing(items, capacity)
    assert sorted(i for found in bins for i in found) == list(range(len(items)))
    assert all(0 < sum(items[i] for i in found) <= capacity or len(found) == 1 for found in bins)


@given(lengths, st.integers(100, 300))
def test_first_fit_leaves_at_most_one_bin_half_empty(items: list[int], capacity: int) -> None:
    loads = [sum(items[i] for i in found) for found in first_fit_decreasing(items, capacity)]
    assert sum(2 * load <= capacity for load in loads) <= 1


@given(lengths, st.integers(1, 9))
def test_balance_places_every_item_once_and_within_the_bound_of_graham(
    items: list[int], num_bins: int
) -> None:
    bins = balance(items, num_bins)
    assert len(bins) == num_bins
    assert sorted(i for found in bins for i in found) == list(range(len(items)))
    loads = [sum(items[i] for i in found) for found in bins]
    assert max(loads) - min(loads) <= max(items, default=0)


@given(st.integers(0, 50), st.integers(1, 9))
def test_split_is_contiguous_complete_and_even(num_items: int, num_parts: int) -> None:
    parts = split_evenly(num_items, num_parts)
    assert [i for part in parts for i in part] == list(range(num_items))
    assert len(parts) == min(num_items, num_parts)
    sizes = [len(part) for part in parts]
    assert not sizes or max(sizes) - min(sizes) <= 1
