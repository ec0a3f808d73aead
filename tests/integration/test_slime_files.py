"""What slime's user files asked and returned, replayed: the same episodes, rewards and masks."""

from pathlib import Path

import msgspec
import pytest

from scripts.slime_files.playing import Engine, Stage, episode_of, recorded_turns, with_flags
from scripts.slime_files.records import Case, Record, differences, names, open_record
from tests.integration import slime_replayed

pytestmark = pytest.mark.anyio

REPLAYED = "tests.integration.slime_replayed"


async def replayed(record: Record, case: Case, folder: Path) -> list[str]:
    """Where the episode of a case is another than the recorded one."""
    flags = with_flags(
        record.flags,
        custom_generate_function_path=f"{REPLAYED}:generate",
        custom_rm_path=f"{REPLAYED}:reward_func",
    )
    rows = [one.row for one in record.cases]
    place = [one.name for one in record.cases].index(case.name)
    slime_replayed.play(case)
    engine = Engine(recorded_turns(case.turns))
    async with Stage(flags, rows, folder) as stage:
        episode = episode_of(await stage.play(place, engine))
    return [*differences(case.turns, engine.turns), *differences(case.episode, episode)]


@pytest.mark.parametrize(
    ("name", "case"), [(name, case.name) for name in names() for case in open_record(name).cases]
)
async def test_a_recorded_exchange_makes_the_same_episode(
    name: str, case: str, tmp_path: Path
) -> None:
    record = open_record(name)
    (found,) = [one for one in record.cases if one.name == case]
    assert await replayed(record, found, tmp_path) == []


@pytest.mark.parametrize("mark", [0, 1])
async def test_a_mask_that_is_forged_by_one_token_makes_another_episode(
    mark: int, tmp_path: Path
) -> None:
    record = open_record("retool")
    case = record.cases[0]
    (sample,) = case.returned
    mask = list(sample.loss_mask or ())
    mask[mask.index(mark)] = 1 - mark
    forged = msgspec.structs.replace(
        case, returned=[msgspec.structs.replace(sample, loss_mask=mask)]
    )
    found = "\n".join(await replayed(record, forged, tmp_path))
    # a token of the tool is refused, and one of the model's is not trained
    assert "env_error" in found if mark == 0 else ".trajectories[0]" in found
    assert ("was not sampled there" in found) == (mark == 0)


async def test_a_reward_that_is_another_is_seen(tmp_path: Path) -> None:
    record = open_record("retool")
    case = record.cases[0]
    (judged,) = case.judged
    lower = msgspec.structs.replace(judged, reward=judged.reward | {"score": 0.5})
    found = await replayed(record, msgspec.structs.replace(case, judged=[lower]), tmp_path)
    assert any(line.startswith(".reward: ") for line in found)
