"""A script that loads where it saves goes on with the run whose checkpoints lie there."""

import os
import shutil
from pathlib import Path

import pytest

from agentrl.cluster.layout import RunDir, with_run
from agentrl.config.run import RunConfig
from agentrl.learner.resume import run_path_of
from tests.unit.default_lines import refused, resolved
from tests.unit.kept_checkpoints import X, begin, said, save

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_that_loads_where_it_saves_goes_on_with_its_run(here: Path) -> None:
    run = begin("first", *X)
    found = resolved(*X)
    assert f"continuing {run}" in found.notes
    assert (found.config.resume, found.config.run_id) == (str(run), "first")
    assert found.config.save == f"{here}/x"


@pytest.mark.parametrize("status", ["complete", "failed"])
def test_it_goes_on_however_it_ended_as_it_is_meant_by_its_folder(status: str) -> None:
    run = begin("first", *X)
    (run / "summary.json").write_text(f'{{"status": "{status}"}}')
    assert f"continuing {run}" in said(*X, "--num-rollout", "99")


def test_the_rest_of_the_script_may_stay_as_it_was(here: Path) -> None:
    script = (*X, "--ref-load", "ref_torch_dist", "--run-id", "first", "--run-dir", "runs")
    run = begin("first", *X, "--ref-load", "ref_torch_dist")
    assert f"continuing {run}" in said(*script)
    (here / "ref_torch_dist").mkdir()
    (here / "ref_torch_dist" / "config.json").touch()
    assert f"continuing {run}" in said(*script)
    auto = (*script, "--resume", "auto")
    assert f"continuing {run}" in said(*auto)


def test_what_stored_rows_rest_on_may_not_change_for_all_that() -> None:
    run = begin("first", *X)
    told = refused(*X, "--rollout-temperature", "0.5")
    assert "--rollout-temperature 0.5, but" in told
    assert "start a new run with another --save than x (--load takes the weights along)" in told
    told = refused("--resume", str(run), "--rollout-temperature", "0.5")
    assert "start a new run (--load takes the weights along)" in told
    found = resolved("--load", "x", "--save", "y", "--rollout-temperature", "0.5")
    assert not found.config.is_continued


@pytest.mark.parametrize("flags", [("--resume", "never"), ("--run-id", "another")])
def test_a_run_of_another_name_begins_anew_with_the_weights(
    flags: tuple[str, ...], here: Path
) -> None:
    begin("first", *X)
    found = resolved(*X, *flags)
    assert not found.config.is_continued
    assert found.config.load == f"{here}/x"
    told = "\n".join(found.notes)
    assert "those of iteration_0000020 of the run first, or of the newest before it" in told
    assert "a new run begins, whose iterations" in told


def test_a_run_whose_directory_is_gone_gives_its_weights_to_a_new_one(here: Path) -> None:
    shutil.rmtree(begin("first", *X))
    found = resolved(*X)
    assert (found.config.is_continued, found.config.load) == (False, f"{here}/x")
    told = "\n".join(found.notes)
    assert "the optimizer are those of iteration_0000020 of the run first" in told
    assert (
        f"there is none in {here}/runs; when it saved that was {here}/runs/first: --resume" in told
    )
    assert f"--save {here}/x holds checkpoints of the run first, which stay as they are" in told


def test_a_copy_of_a_runs_checkpoints_is_not_that_run(here: Path) -> None:
    begin("first", *X)
    shutil.copytree(here / "x", here / "y")
    found = resolved("--load", "y", "--save", "y")
    assert not found.config.is_continued
    told = "\n".join(found.notes)
    assert f"a copy of that run's checkpoints; --resume {here}/runs/first continues it" in told


def elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The flags of `X`, for a program that is started from another directory."""
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    return ("--load", str(here / "x"), "--save", str(here / "x"))


def test_a_run_is_found_again_from_another_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin("first", *X)
    flags = elsewhere(here, monkeypatch)
    found = resolved(*flags)
    assert f"continuing {run}" in found.notes
    assert (found.config.run_dir, found.config.run_id) == (f"{here}/runs", "first")
    assert not resolved(*flags, "--resume", "never").config.is_continued
    told = resolved(*flags, "--run-dir", "runs")
    assert not told.config.is_continued
    why = f"that run is in {run} and not in --run-dir {here}/other/runs: --run-dir {here}/runs or"
    assert why in "\n".join(told.notes)


def test_a_run_that_was_moved_is_named_by_where_it_was(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin("first", *X)
    (here / "runs").rename(here / "moved")
    flags = elsewhere(here, monkeypatch)
    told = "\n".join(resolved(*flags).notes)
    assert f"when it saved that was {run}: --resume PATH continues it" in told
    assert f"continuing {here}/moved/first" in said(*flags, "--run-dir", f"{here}/moved")


@pytest.mark.parametrize("place", ["", "runs/first", "/" + "x" * 5000, "/a\0b", "/proc", "other"])
def test_a_path_that_is_not_the_directory_of_the_run_is_not_followed(
    place: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin("first", *X)
    another = begin("second", "--save", "z")
    shutil.rmtree(here / "x")
    save(here / "x", "first", 30, run_path=str(another) if place == "other" else place)
    found = resolved(*elsewhere(here, monkeypatch))
    assert not found.config.is_continued
    assert "goes on only with its run directory" in "\n".join(found.notes)


def test_the_directory_of_another_user_is_not_followed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wrote the checkpoints could name code of theirs by it."""
    run = begin("first", *X)
    if os.getuid() != 0:
        pytest.skip("only root can give a folder to another user")
    os.chown(run, 12345, -1)
    assert not resolved(*elsewhere(here, monkeypatch)).config.is_continued


def test_a_run_that_was_renamed_is_said_to_be_where_it_is_now(here: Path) -> None:
    run = begin("first", *X).rename(here / "runs" / "renamed")
    config = resolved(*X).config
    with RunDir(config) as again:
        assert run_path_of(with_run(config, again)) == str(run)
    assert run_path_of(RunConfig()) == ""


def test_weights_taken_from_elsewhere_begin_a_new_run(here: Path) -> None:
    run = begin("first", *X)
    for place in ("x", str(run), "x/iteration_0000010"):
        found = resolved("--load", place, "--save", "y")
        assert not found.config.is_continued
        assert "a new run begins" in "\n".join(found.notes)
