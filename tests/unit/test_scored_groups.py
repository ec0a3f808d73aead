"""Judged groups that wait for a lease, and for the function that is shown them."""

from agentrl.cluster.scored_groups import ScoredGroups


def test_a_batch_has_what_was_judged_until_its_lease_was_made() -> None:
    groups = ScoredGroups()
    groups.add(b"a")
    groups.add(b"b")
    assert groups.take() is None
    groups.leased(1)
    groups.add(b"c")
    groups.leased(2)
    assert groups.num_groups == 3
    assert groups.take() == (1, [b"a", b"b"])
    assert groups.take() == (2, [b"c"])
    assert (groups.take(), groups.num_groups, groups.num_dropped) == (None, 0, 0)


def test_a_lease_before_which_nothing_was_judged_is_no_batch() -> None:
    groups = ScoredGroups()
    groups.leased(1)
    assert groups.take() is None


def test_the_oldest_make_room_and_are_counted() -> None:
    groups = ScoredGroups(max_bytes=4)
    for each in (b"aa", b"b"):
        groups.add(each)
    groups.leased(1)
    groups.add(b"ccc")
    assert (groups.num_dropped, groups.num_groups) == (1, 2)
    groups.add(b"d")  # the last of lease 1 goes, and its batch with it
    groups.leased(2)
    assert groups.num_dropped == 2
    assert groups.take() == (2, [b"ccc", b"d"])
    groups.add(b"eeeee")  # there is no room for it at all
    assert (groups.num_dropped, groups.num_groups) == (3, 0)
    groups.add(b"ffff")  # what was taken gave its room back
    assert (groups.num_dropped, groups.num_groups) == (3, 1)
