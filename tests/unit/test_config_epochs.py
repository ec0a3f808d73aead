"""How long a run goes on: --num-rollout, and without it --num-epoch, as in slime."""

from pathlib import Path

import anyio

from agentrl.config.resolve import Resolved, parse
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_source


def resolved(folder: Path, *flags: str) -> Resolved:
    rows = folder / "rows.jsonl"
    rows.write_text('{"input": "x", "label": "y"}\n' * 3)
    argv = ["--preset", "search-r1-local", "--env", "single-turn", "--prompt-data", str(rows)]
    return parse([*argv, *flags], "train_async")


def num_tasks(run: Resolved, most: int = 50) -> int:
    """How many the run has, up to `most`."""

    async def count() -> int:
        found = 0
        async for _ in open_source(run.config, load_env("single-turn")).tasks():
            found += 1
            if found == most:
                break
        return found

    return anyio.run(count)


def noted(run: Resolved) -> bool:
    return any("--num-epoch 2 is passed over beside --num-rollout" in note for note in run.notes)


def test_a_number_of_epochs_is_passed_over_beside_a_number_of_iterations(tmp_path: Path) -> None:
    run = resolved(tmp_path, "--num-rollout", "7", "--num-epoch", "2")
    assert (num_tasks(run), noted(run)) == (50, True)


def test_a_number_of_epochs_alone_ends_the_tasks_under_any_preset(tmp_path: Path) -> None:
    run = resolved(tmp_path, "--num-epoch", "2")
    assert (num_tasks(run), noted(run)) == (6, False)
    assert num_tasks(resolved(tmp_path)) == 50
