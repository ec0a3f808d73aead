"""Rules that the simulator plays are the production ones: one that is wrong turns it red."""

from pathlib import Path

import pytest

from tests.property.mutants import Mutant, broken_by

pytestmark = pytest.mark.slow

SCHEDULE = "agentrl/learner/schedule.py"
OUTBOX = "agentrl/wire/outbox.py"

MUTANTS = [
    Mutant(
        "the buffer forgets a lease before the checkpoint that covers it is on disk",
        SCHEDULE,
        """        yield from self._save()
        if self._being_written is None:
            yield from self._retire()
""",
        """        yield Tell(Retire(self._done))
        yield from self._save()
""",
    ),
    Mutant(
        "no checkpoint is left to fall back to",
        SCHEDULE,
        "            yield Tell(Retire(self._covered))\n",
        "            yield Tell(Retire(self._saved))\n",
    ),
    Mutant(
        "a push begins before its announcement is committed",
        SCHEDULE,
        "            yield Settle()\n            costs = yield Push(row)\n",
        "            costs = yield Push(row)\n",
    ),
    Mutant(
        "a version is announced before the lease that it contains is reported",
        SCHEDULE,
        """        yield Tell(report)
        yield from self._end_save(waits=False)
        if self._settings.shares_devices:
            if self._is_to_save() and not header.last:
                yield from self._checkpoint()
        elif not self._is_caught_up:
            pass
        elif self._is_unpublished:
            yield from self._publish_next()
        elif self._done % self._settings.update_weights_interval == 0:
            yield from self._publish_in_turn()
""",
        """        yield from self._end_save(waits=False)
        if self._settings.shares_devices:
            if self._is_to_save() and not header.last:
                yield from self._checkpoint()
        elif not self._is_caught_up:
            pass
        elif self._is_unpublished:
            yield from self._publish_next()
        elif self._done % self._settings.update_weights_interval == 0:
            yield from self._publish_in_turn()
        yield Tell(report)
""",
    ),
    Mutant(
        "a learner that comes back takes the newest number again",
        SCHEDULE,
        "max(row.version for row in versions) + 1",
        "max(row.version for row in versions)",
    ),
    Mutant(
        "a permit is given twice",
        "agentrl/serving/permit_queue.py",
        "                granted()\n                return\n        self.measure",
        "                granted()\n        self.measure",
    ),
    Mutant(
        "the buffer speaks before it commits",
        "agentrl/buffer/events.py",
        """    if rows:
        yield Commit(rows)
    for effect in _with_joined_acks(effects):
        if isinstance(effect, DropSegments):
            yield DropSegments(tuple(n for n in effect.segments if not is_needed(n)))
        elif not isinstance(effect, Persist):
            yield effect
""",
        """    for effect in _with_joined_acks(effects):
        if isinstance(effect, DropSegments):
            yield DropSegments(tuple(n for n in effect.segments if not is_needed(n)))
        elif not isinstance(effect, Persist):
            yield effect
    if rows:
        yield Commit(rows)
""",
    ),
    Mutant(
        "a checkpoint is begun before all that it rests on is committed",
        SCHEDULE,
        "        yield Settle()\n        yield Save(self._done",
        "        yield Save(self._done",
    ),
    Mutant(
        "a peer sends nothing again",
        OUTBOX,
        "        self._resend_s = resend_s\n",
        '        self._resend_s = float("inf")\n',
    ),
    Mutant(
        "a peer does not begin anew after a Welcome",
        "agentrl/wire/conversation.py",
        "                self.outbox.rewind()\n",
        "",
    ),
    Mutant(
        "an Ack settles what was said later, too",
        OUTBOX,
        "            self._sent.pop(seq, None)\n",
        "            self._sent.clear()\n",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_wrong_rule_is_found(mutant: Mutant, tmp_path: Path) -> None:
    assert broken_by(mutant, tmp_path), "no promise was broken"


def test_the_rules_as_they_are_break_no_promise(tmp_path: Path) -> None:
    assert broken_by(None, tmp_path) == ""
