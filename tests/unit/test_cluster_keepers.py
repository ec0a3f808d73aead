"""Where lost agent workers go, and whose copies of services they use there. Nodes are names."""

import pytest

from agentrl.cluster.keepers import Keepers, NodeOfSlot

SLOTS = ("host", "workers-1", "workers-2")
AT_FIRST = {"host": "n0", "workers-1": "n1", "workers-2": "n2"}


@pytest.mark.parametrize(
    ("alive", "chosen"), [("n0 n2", "n0"), ("n0 n2 n3", "n3"), ("n0 n1 n2", "n1")]
)
@pytest.mark.parametrize("slots", [(), SLOTS], ids=["without copies", "with copies"])
def test_workers_are_placed_again_where_the_fewest_of_them_are(
    slots: tuple[str, ...], alive: str, chosen: str
) -> None:
    assert Keepers(slots).choose("workers-1", alive.split(), AT_FIRST).node == chosen


def test_at_first_each_node_has_copies_of_its_own() -> None:
    keepers = Keepers(SLOTS)
    assert [keepers.of(slot) for slot in SLOTS] == [*SLOTS]


def test_workers_share_the_copies_of_a_node_that_has_some_and_keep_them_on_another() -> None:
    keepers = Keepers(SLOTS)
    assert keepers.choose("workers-1", ["n0", "n2"], AT_FIRST) == NodeOfSlot("n0", "host")
    assert keepers.choose("workers-1", ["n0", "n2", "n3"], AT_FIRST) == NodeOfSlot(
        "n3", "workers-1"
    )
    keepers.placed("workers-1", "host")
    assert keepers.of("workers-1") == "host"


def test_who_shares_goes_to_a_node_that_has_come_back_and_keeps_there() -> None:
    """Its own copies are nowhere meanwhile: they begin again on the next node without any."""
    keepers = Keepers(SLOTS)
    keepers.placed("workers-2", "workers-1")
    nodes = AT_FIRST | {"workers-2": "n1"}
    there = ["n0", "n3"]
    assert keepers.choose("workers-2", there, nodes) == NodeOfSlot("n3", "workers-2")
    keepers.placed("workers-2", "workers-2")
    nodes["workers-2"] = "n3"
    assert keepers.choose("workers-1", there, nodes) == NodeOfSlot("n0", "host")


def test_no_two_slots_begin_copies_on_one_node_and_none_shares_what_is_only_awaited() -> None:
    keepers = Keepers(SLOTS)
    there, awaited = ["n0", "n3"], {"workers-1": "n3"}
    assert keepers.choose("workers-2", there, AT_FIRST, awaited) == NodeOfSlot("n0", "host")
    assert keepers.choose("workers-2", [*there, "n4"], AT_FIRST, awaited).node == "n4"


def test_a_node_without_room_for_copies_is_left_to_others() -> None:
    keepers = Keepers(SLOTS)
    there = ["n0", "n2", "n3"]
    keepers.has_no_room("workers-1", "n3")
    assert keepers.choose("workers-1", there, AT_FIRST) == NodeOfSlot("n0", "host")
    assert keepers.choose("workers-2", ["n0", "n3"], AT_FIRST) == NodeOfSlot("n3", "workers-2")
    keepers.placed("workers-1", "host")
    nodes = AT_FIRST | {"workers-1": "n5"}
    assert keepers.choose("workers-1", there, nodes).node == "n3", "there may be room by then"


def test_a_slot_whose_node_is_there_goes_back_to_those_that_share_its_copies() -> None:
    """Only Ray's host has ended, as for want of memory."""
    keepers = Keepers(SLOTS)
    keepers.placed("workers-2", "workers-1")
    nodes = AT_FIRST | {"workers-2": "n1"}
    there = ["n0", "n1", "n3"]
    for _ in range(2):
        assert keepers.choose("workers-1", there, nodes) == NodeOfSlot("n1", "workers-1")
        assert keepers.choose("workers-2", there, nodes) == NodeOfSlot("n1", "workers-1")
        keepers.has_no_room("workers-1", "n1")
    keepers.placed("workers-2", "host")
    keepers.has_no_room("workers-1", "n1")
    moved = nodes | {"workers-2": "n0"}
    assert keepers.choose("workers-1", there, moved) == NodeOfSlot("n3", "workers-1")
