"""What a run begins with, and which one goes on: `--load`, `--ref-load` and `--save` as slime's
scripts give them, before anything starts."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from agentrl.cli.train import main
from agentrl.cluster.layout import RunDir, with_run
from agentrl.config.first_weights import about_weights, models_of
from agentrl.config.presets import DEFAULT
from agentrl.config.run import RunConfig
from tests.unit.default_lines import MODEL, refused, resolved
from tests.unit.kept_checkpoints import X, age, begin, said, save

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- where nothing is there ---------------------------------------------------------------------


@pytest.mark.parametrize("there", ["", "empty", "other files"])
def test_a_place_that_holds_nothing_begins_from_the_model_with_a_note(
    there: str, here: Path
) -> None:
    if there:
        (here / "x").mkdir()
    if there == "other files":
        (here / "x" / "notes.txt").touch()
    found = resolved(*X)
    lack = {
        "": f"there is no folder {here}/x",
        "empty": "it is empty",
        "other files": "it holds no model and no checkpoint",
    }
    assert f"--load {here}/x: {lack[there]}; it is passed over" in found.notes
    assert f"the first weights are those of --hf-checkpoint {MODEL}" in found.notes
    assert (found.config.load, found.config.save) == (None, f"{here}/x")


def test_a_folder_without_a_manifest_is_no_checkpoint_and_is_passed_over(here: Path) -> None:
    shutil.copytree(MODEL, here / "ref")
    save(here / "kept", "other", 3)
    (here / "kept" / "iteration_0000003" / "manifest.json").unlink()
    note = f"--load {here}/kept: iteration_0000003 has no manifest.json: it is no checkpoint"
    for flags, first in (
        ((), "--hf-checkpoint"),
        (("--ref-load", "ref"), f"--ref-load {here}/ref"),
    ):
        found = resolved("--load", "kept", *flags)
        assert any(line.startswith(note) for line in found.notes)
        assert any(first in line for line in found.notes)
        assert found.config.load == (f"{here}/ref" if flags else None)


def test_what_lies_in_the_run_s_own_folder_is_never_passed_over(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose checkpoints are damaged does not begin anew as if it had none."""
    save(here / "x", "run", 3)
    manifest = here / "x" / "iteration_0000003" / "manifest.json"
    for damage in (lambda: manifest.write_bytes(b"{}"), manifest.unlink):
        damage()
        assert resolved(*X, "--ref-load", str(MODEL)).config.load == f"{here}/x"
        argv = ["--preset", DEFAULT, "--device", "cpu", *X, "--ref-load", str(MODEL), "--dry-run"]
        assert main(argv, "train_async") == 65
        told = capsys.readouterr().err
        assert f"--load {here}/x (without --load the weights are those of --ref-load, else" in told
        assert "none of the 1 checkpoints in " in told


def test_without_load_the_first_weights_are_those_of_the_reference(here: Path) -> None:
    shutil.copytree(MODEL, here / "ref")
    for flags in (("--ref-load", "ref"), (*X, "--ref-load", "ref")):
        found = resolved(*flags)
        note = f"--ref-load {here}/ref: the first weights are those of this Hugging Face model"
        assert note in found.notes
        assert (found.config.load, found.config.ref_load) == (f"{here}/ref",) * 2


def test_a_reference_that_is_not_there_is_noted_where_nothing_compares_with_it(here: Path) -> None:
    found = resolved("--ref-load", "ref_torch_dist")
    assert f"--ref-load {here}/ref_torch_dist: there is no folder" in found.notes[1]
    assert (found.config.load, found.config.ref_load) == (None, None)


def test_a_reference_that_is_not_there_is_refused_where_something_compares_with_it() -> None:
    told = refused("--ref-load", "ref_torch_dist", "--use-kl-loss")
    assert "there is no folder" in told
    assert "leave it out: the reference then is --hf-checkpoint" in told


#: An estimator of the user's, which needs a reference or none.
ESTIMATOR = """\
import msgspec
from agentrl.algorithms.base import Algorithm

class Mine(Algorithm):
    def __init__(self, cfg, args):
        super().__init__(cfg, args)
        self.needs = msgspec.structs.replace(self.needs, passes=frozenset({%s}))
"""


@pytest.mark.parametrize("needs", ["'reference'", ""])
def test_a_reference_that_an_estimator_of_the_users_needs_is_refused_where_it_is_not_there(
    needs: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(ESTIMATOR % needs)
    flags = ("--advantage-estimator", "mine.py", "--ref-load", "typo")
    code = main(["--preset", DEFAULT, "--device", "cpu", *flags, "--dry-run"], "train_async")
    told = capsys.readouterr()
    assert code == (2 if needs else 0), told.err
    said = told.err if needs else told.out
    assert f"--ref-load {here}/typo: there is no folder {here}/typo" in said
    refusal = "leave it out: the reference then is --hf-checkpoint"
    assert (refusal in told.err) is bool(needs)
    assert "--load" not in told.err.replace("--ref-load", ""), "nothing else is refused"


def test_whether_a_reference_is_needed_is_for_an_estimator_of_the_users_to_say(
    here: Path,
) -> None:
    (here / "mine.py").write_text(ESTIMATOR % "")
    own = ("--advantage-estimator", "mine.py")
    begun = resolved(*own, "--ref-load", "typo").config
    assert (begun.load, begun.ref_load) == (None, f"{here}/typo")
    assert list(about_weights(begun)) == []


@pytest.mark.parametrize("flag", ["--load", "--ref-load"])
@pytest.mark.parametrize("file", ["latest_checkpointed_iteration.txt", "common.pt", ".metadata"])
def test_a_checkpoint_of_megatrons_gives_the_first_weights(
    flag: str, file: str, here: Path
) -> None:
    (here / "Qwen3-4B_torch_dist").mkdir()
    (here / "Qwen3-4B_torch_dist" / file).touch()
    found = resolved(flag, "Qwen3-4B_torch_dist")
    place = f"{here}/Qwen3-4B_torch_dist"
    weights = f"{flag} {place}: the first weights are those of this checkpoint of Megatron's"
    alone = f"{weights}; the optimizer is new"
    where = (
        f"{weights}, and so is the optimizer where it is there in a form that every layout reads"
    )
    assert (f"{where}; else it is new" if flag == "--load" else alone) in found.notes
    assert found.config.load == place
    assert alone in resolved(flag, "Qwen3-4B_torch_dist", "--no-load-optim").notes


@pytest.mark.parametrize("flag", ["--load", "--ref-load"])
@pytest.mark.parametrize("name", ["iter_0000010", "iteration_0000010"])
def test_a_step_names_one_of_the_checkpoints_that_lie_there(
    flag: str, name: str, here: Path
) -> None:
    (here / "kept" / name).mkdir(parents=True)
    (here / "kept" / name / "manifest.json").touch()
    (here / "kept" / name / "common.pt").touch()
    step = flag.replace("load", "ckpt-step")
    found = resolved(flag, "kept", step, "10")
    assert f"{step} 10: kept/{name}" in found.notes
    assert found.config.load == f"{here}/kept/{name}"
    assert resolved(flag, f"kept/{name}", step, "10").config.load == f"{here}/kept/{name}"
    assert f"{step} 11: there is neither" in refused(flag, "kept", step, "11")
    assert "the number of an iteration" in refused(flag, "kept", step, "newest")


def test_all_of_it_is_told_by_a_dry_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--preset", DEFAULT, *X, "--dry-run"], "train_async") == 0
    assert f"--load {here}/x: there is no folder" in capsys.readouterr().out
    (here / "x").mkdir()
    (here / "x" / "latest_checkpointed_iteration.txt").write_text("12")
    assert main(["--preset", DEFAULT, *X, "--dry-run"], "train_async") == 2
    told = capsys.readouterr().err
    assert f"{here}/x/iter_0000012 is no checkpoint of Megatron's format torch_dist" in told


def test_a_reference_of_another_architecture_is_told_by_a_dry_run_with_each_field(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(MODEL, here / "ref")
    config = json.loads((here / "ref" / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 7.0
    config |= {"rms_norm_eps": 0.5, "max_position_embeddings": 4096}
    (here / "ref" / "config.json").write_text(json.dumps(config))
    for flag in ("--ref-load", "--load"):
        assert main(["--preset", DEFAULT, flag, "ref", "--dry-run"], "train_async") == 2
        told = capsys.readouterr().err
        assert f"{flag} {here}/ref is another model than --hf-checkpoint" in told
        assert "it has norm_epsilon 0.5 instead of" in told
        assert "rotary_base 7.0 instead of" in told
        assert "max_position" not in told


def test_a_model_without_weights_is_nothing_to_begin_with(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "ref").mkdir()
    shutil.copy(MODEL / "config.json", here / "ref")
    assert main(["--preset", DEFAULT, "--ref-load", "ref"], "train_async") == 2
    assert f"--ref-load {here}/ref has neither model.safetensors" in capsys.readouterr().err


def test_the_room_that_kept_checkpoints_take_is_noted() -> None:
    # 853,056 parameters of 12 bytes: float32 weights, and two moments
    assert "--save" not in said("--num-rollout", "35")
    told = said("--save", "y", "--num-rollout", "35")
    assert "gets 4 checkpoints of about 9.8 MiB, together 39.0 MiB: all are kept" in told
    told = said("--save", "y", "--num-rollout", "35", "--save-retain-interval", "20")
    assert "gets 3 checkpoints" in told
    assert "no multiple of --save-interval 10" in refused("--save-retain-interval", "15")


# ---- nothing of another run is replaced ---------------------------------------------------------


def test_a_folder_of_another_run_gets_a_folder_for_the_new_one(here: Path) -> None:
    shutil.rmtree(begin("first", *X))
    age(here / "x")
    run = begin("second", *X, iterations=(3,))
    assert [path.name for path in sorted((here / "x").iterdir())] == [
        *("iteration_0000010", "iteration_0000020", "second"),
    ]
    assert (here / "x" / "second" / "iteration_0000003").is_dir()
    found = resolved(*X)
    assert f"continuing {run}" in found.notes
    with RunDir(found.config) as again:
        assert with_run(found.config, again).save == f"{here}/x/second"
    shutil.rmtree(run)
    assert resolved(*X).config.load == f"{here}/x/second"


def test_a_run_keeps_to_its_folder_whatever_becomes_of_the_others(here: Path) -> None:
    shutil.rmtree(begin("first", *X))
    run = begin("second", *X, iterations=(3,))
    for path in (here / "x").glob("iteration_*"):
        shutil.rmtree(path)
    found = resolved("--resume", str(run)).config
    with RunDir(found) as again:
        assert with_run(found, again).save == f"{here}/x/second"


def test_a_folder_that_is_only_saved_to_is_no_reason_to_go_on(here: Path) -> None:
    begin("first", *X)
    found = resolved("--save", "x")
    assert (found.config.is_continued, found.config.load) == (False, None)
    assert f"--save {here}/x holds checkpoints of the run first" in "\n".join(found.notes)


def test_a_run_that_goes_on_reads_no_critic_load(tmp_path: Path) -> None:
    gone = RunConfig(advantage_estimator="ppo", critic_load=str(tmp_path / "gone"))
    assert any("--critic-load" in line for line in about_weights(gone))
    there = tmp_path / "model"
    there.mkdir()
    (there / "config.json").write_text("{}")
    named = msgspec.structs.replace(gone, critic_load=str(there))
    assert models_of(named) == {"--critic-load": str(there)}
    for config in (gone, named):
        goes_on = msgspec.structs.replace(config, resume=str(tmp_path))
        assert list(about_weights(goes_on)) == []
        assert models_of(goes_on) == {}
