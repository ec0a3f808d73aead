"""A model named as on the Hugging Face hub is taken from this host's cache, or its line is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.presets import DEFAULT, PRESETS

pytestmark = pytest.mark.slow

MODEL = Path(str(PRESETS[DEFAULT].values["hf_checkpoint"]))
ASK = """
import sys
from agentrl.config.resolve import parse
from agentrl.errors import ConfigError
try:
    config = parse(sys.argv[1:], "train_async").config
except ConfigError as error:
    print(error)
else:
    print(config.hf_checkpoint, config.ref_load)
"""


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """The model `lab/tiny` in a cache, as the tools of Hugging Face lay it down."""
    folder = tmp_path / "home" / "hub" / "models--lab--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c0ffee")
    (folder / "snapshots").mkdir()
    (folder / "snapshots" / "c0ffee").symlink_to(MODEL)
    return folder / "snapshots" / "c0ffee"


ASK_EVALUATION = """
import sys
from pathlib import Path
from agentrl.cli.evaluate import model_flags
from agentrl.errors import ConfigError
try:
    print(*model_flags(Path(sys.argv[1])))
except ConfigError as error:
    print(error)
"""


def asked(folder: Path, *flags: str) -> str:
    argv = [*("--env", "search-r1-local", "--rollout-max-response-len", "64"), *flags]
    return answer(folder, ASK, *argv)


def answer(folder: Path, program: str, *argv: str) -> str:
    environment = os.environ | {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run(
        [sys.executable, "-c", program, *argv],
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
        env=environment,
        cwd=folder,
    )
    return done.stdout.strip()


def test_a_model_of_the_hub_is_taken_from_the_cache(tmp_path: Path, snapshot: Path) -> None:
    assert asked(tmp_path, "--hf-checkpoint", "lab/tiny") == f"{snapshot} None"
    flags = ("--hf-checkpoint", str(MODEL), "--ref-load", "lab/tiny", "--use-kl-loss")
    assert str(snapshot) in asked(tmp_path, *flags)


def test_a_folder_of_that_name_comes_first(tmp_path: Path, snapshot: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "tiny").symlink_to(MODEL)
    assert asked(tmp_path, "--hf-checkpoint", "lab/tiny") == "lab/tiny None"


def test_a_model_that_is_not_in_the_cache_is_told_with_the_line_that_fetches_it(
    tmp_path: Path, snapshot: Path
) -> None:
    assert "`hf download lab/other`" in asked(tmp_path, "--hf-checkpoint", "lab/other")
    assert "hf download" not in asked(tmp_path, "--hf-checkpoint", "/no/where/at/all")


def test_an_evaluation_takes_a_model_of_the_hub_from_the_cache(
    tmp_path: Path, snapshot: Path
) -> None:
    assert answer(tmp_path, ASK_EVALUATION, "lab/tiny") == f"--hf-checkpoint {snapshot}"


def test_an_evaluation_says_how_a_model_comes_that_is_not_in_the_cache(tmp_path: Path) -> None:
    line = "; a model of that name on the Hugging Face hub comes by `hf download lab/other`"
    assert answer(tmp_path, ASK_EVALUATION, "lab/other").endswith(line)
    assert line in asked(tmp_path, "--hf-checkpoint", "lab/other")
