"""Weights of another model, or damaged ones: a dry run names what differs, from headers alone."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from agentrl.cli.train import main
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.learner.checkpointing import CheckpointWriter
from agentrl.learner.manifest import FileFacts
from agentrl.models.registry import open_model
from agentrl.models.shapes import shapes_of, wholes_of
from scripts.header_only import write_model, write_state, write_torch_dist
from tests.unit.checkpoint_ranks import Backend

pytestmark = pytest.mark.slow

MODEL = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
Say = Callable[..., str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Say:
    def say(*argv: str, code: int = 2) -> str:
        assert main(["--preset", DEFAULT, *argv, "--dry-run"], "train_async") == code
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        return told.err

    return say


@pytest.fixture
def accepted(capsys: pytest.CaptureFixture[str]) -> Say:
    def say(*argv: str) -> str:
        assert main(["--preset", DEFAULT, *argv, "--dry-run"], "train_async") == 0
        return capsys.readouterr().out

    return say


def changed(folder: Path, **values: Any) -> Path:
    """The model of the default job under another config.json, with the weights that it implies."""
    shutil.copytree(MODEL, folder)
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))
    write_model(folder, shapes_of(open_model(folder, None)), "F32")
    return folder


# ---- a model ------------------------------------------------------------------------------------


def test_weights_that_its_config_does_not_imply_are_told_at_once(here: Path, refused: Say) -> None:
    folder = changed(here / "model")
    shapes = shapes_of(open_model(folder, None))
    name = "model.layers.1.self_attn.q_proj.weight"
    shapes |= {name: (8, 8), "model.layers.0.surprise": (2,)}
    del shapes["model.norm.weight"]
    write_model(folder, shapes)
    told = refused("--hf-checkpoint", str(folder))
    assert f"--hf-checkpoint {folder} does not fit its config.json: it has" in told
    assert f"{name} of shape (8, 8), not (128, 128)" in told
    assert "no model.norm.weight" in told
    assert "model.layers.0.surprise, which a Qwen3ForCausalLM of these sizes has not" in told


def test_every_field_and_every_tensor_of_another_model_is_told(here: Path, refused: Say) -> None:
    changed(here / "ref", intermediate_size=96, rms_norm_eps=0.5, num_key_value_heads=4)
    told = refused("--ref-load", "ref")
    assert f"--ref-load {here}/ref is another model than --hf-checkpoint: it has" in told
    for words in ("ffn_hidden_size 96 instead of", "norm_epsilon 0.5 instead of"):
        assert words in told
    assert "num_query_groups 4 instead of" in told
    assert "model.layers.0.mlp.down_proj.weight of shape (128, 96), not (128, 384)" in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "{dir}/config.json is not a JSON object: "),
        ('{"text_config": 3}', "{dir}/config.json: text_config must be an object and "),
        ('{"architectures": ["Qwen3ForCausalLM"]}', "{dir}/config.json lacks "),
    ],
)
@pytest.mark.parametrize(
    ("flag", "others"),
    [
        ("--load", ""),
        ("--ref-load", "--use-kl-loss"),
        ("--opd-teacher-load", "--use-opd --opd-type megatron"),
        ("--critic-load", "--advantage-estimator ppo"),
    ],
)
def test_a_config_json_that_is_none_is_told_with_the_flag_that_names_it(
    flag: str, others: str, text: str, words: str, here: Path, refused: Say
) -> None:
    folder = changed(here / "model")
    (folder / "config.json").write_text(text)
    told = refused(flag, str(folder), *others.split())
    assert f"{flag} {words.format(dir=folder)}" in told
    assert "--hf-checkpoint" not in told


def test_weights_of_another_type_are_refused(here: Path, refused: Say) -> None:
    folder = changed(here / "ref")
    write_model(folder, shapes_of(open_model(folder, None)), "F8_E4M3")
    assert "in F8_E4M3" in refused("--ref-load", "ref")


@pytest.mark.parametrize(("flags", "is_told"), [(("--bf16",), True), ((), False)])
def test_single_tensors_in_float32_that_bf16_rounds_are_told(
    flags: tuple[str, ...], is_told: bool, here: Path, accepted: Say
) -> None:
    folder = changed(here / "ref")
    shapes = shapes_of(open_model(folder, None))
    wide = "model.layers.0.input_layernorm.weight"
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors | {wide: tensors[wide].float()}, folder / "model.safetensors")
    told = " ".join(accepted("--ref-load", "ref", *flags).split())
    words = f"--ref-load {folder} has single tensors in float32 (1, such as {wide}) and others"
    assert (words in told) is is_told


# ---- Megatron's format --------------------------------------------------------------------------


def converted(folder: Path, model: Path = MODEL, **more: Any) -> Path:
    write_torch_dist(folder, wholes_of(open_model(model, None)), **more)
    return folder


def test_a_whole_checkpoint_of_megatrons_passes(here: Path, accepted: Say) -> None:
    converted(here / "dist")
    assert "--load" in accepted("--load", "dist")


def test_layers_that_are_one_tensor_are_compared_layer_by_layer(
    here: Path, accepted: Say, refused: Say
) -> None:
    found: dict[str, list[tuple[int, ...]]] = {}
    for key, shape in wholes_of(open_model(MODEL, None)).items():
        words = key.split(".")
        if words[1] == "layers":
            del words[2]
        found.setdefault(".".join(words), []).append(shape)
    together = {k: (len(s), *s[0]) if ".layers." in k else s[0] for k, s in found.items()}
    write_torch_dist(here / "dist", together)
    accepted("--load", "dist")
    fewer = {k: (s[0] - 1, *s[1:]) if ".layers." in k else s for k, s in together.items()}
    write_torch_dist(here / "fewer", fewer)
    assert "no decoder.layers.2.mlp.linear_fc1.weight" in refused("--load", "fewer")


def cut(folder: Path) -> None:
    os.truncate(folder / "release/__0_0.distcp", 1000)


def holes(folder: Path) -> None:
    path = folder / "release/__0_0.distcp"
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


def cut_header(folder: Path) -> None:
    path = folder / "release/.metadata"
    os.truncate(path, path.stat().st_size // 2)


def gone(folder: Path) -> None:
    (folder / "release/__0_0.distcp").unlink()


def other_iteration(folder: Path) -> None:
    (folder / "latest_checkpointed_iteration.txt").write_text("12")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut, "__0_0.distcp is cut short"),
        (holes, "__0_0.distcp is damaged: it has no tensor at byte 0, where"),
        (cut_header, ".metadata cannot be read"),
        (gone, "names '__0_0.distcp', and there is no such file in it"),
        (other_iteration, "iter_0000012 is no checkpoint of Megatron's format torch_dist"),
    ],
)
def test_a_damaged_checkpoint_of_megatrons_is_refused_by_what_is_damaged(
    spoil: Callable[[Path], None], words: str, here: Path, refused: Say
) -> None:
    spoil(converted(here / "dist"))
    for flags in (("--load", "dist"), ("--ref-load", "dist")):
        assert words in refused(*flags)


def test_a_checkpoint_of_another_architecture_is_refused_by_every_difference(
    here: Path, refused: Say
) -> None:
    other = changed(here / "other", intermediate_size=96)
    arguments = {"ffn_hidden_size": 96, "norm_epsilon": 0.5, "group_query_attention": True}
    converted(here / "dist", other, arguments=arguments)
    told = refused("--load", "dist")
    assert f"--load {here}/dist/release is of another model: it has" in told
    assert "ffn_hidden_size 96 instead of" in told
    assert "norm_epsilon 0.5 instead of" in told
    assert "decoder.layers.0.mlp.linear_fc1.weight has shape (192, 128) in bfloat16 there" in told


# ---- a run's checkpoints ------------------------------------------------------------------------


class Learner(Backend):
    """Saves the weights of a model, as far as headers go."""

    def __init__(self, model: Path) -> None:
        super().__init__()
        self._wholes = wholes_of(open_model(model, None))

    def save_state(self, directory: Path) -> Mapping[str, FileFacts]:
        facts = super().save_state(directory)
        write_state(directory, self._wholes)
        return facts


def save(folder: Path, *iterations: int, model: Path = MODEL) -> Path:
    writer = CheckpointWriter(folder, Learner(model), run_id="first")
    writer.begin(None)
    for iteration in iterations:
        writer.save(iteration, version=iteration)
    return folder


def test_a_whole_checkpoint_of_a_run_passes(here: Path, accepted: Say) -> None:
    save(here / "kept", 1)
    told = accepted("--load", "kept")
    assert "those of iteration_0000001 of the run first" in told
    assert "passes over" not in told


def flip(folder: Path) -> None:
    path = folder / "state/__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def shorten(folder: Path) -> None:
    os.truncate(folder / "state/__0_0.distcp", 4000)


def lose(folder: Path) -> None:
    (folder / "state/__0_0.distcp").unlink()


def reword(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"first"', '"other"'))


SPOILT = [
    (flip, "__0_0.distcp is damaged: its xxh3_64 is"),
    (shorten, "__0_0.distcp has 4000 bytes, not"),
    (lose, "__0_0.distcp is missing"),
    (reword, "manifest.json does not match its own checksum"),
]


@pytest.mark.parametrize(("spoil", "words"), SPOILT)
def test_a_damaged_checkpoint_of_a_run_is_refused_where_there_is_no_other(
    spoil: Callable[[Path], None], words: str, here: Path, refused: Say
) -> None:
    spoil(save(here / "kept", 1) / "iteration_0000001")
    assert words in refused("--load", "kept", code=65)
    assert words in refused("--load", "kept/iteration_0000001", code=65)


@pytest.mark.parametrize(("spoil", "words"), SPOILT)
def test_a_damaged_one_is_passed_over_for_the_one_before_and_that_is_told(
    spoil: Callable[[Path], None], words: str, here: Path, accepted: Say
) -> None:
    spoil(save(here / "kept", 1, 2) / "iteration_0000002")
    told = accepted("--load", "kept")
    assert "--load passes over what is damaged: " in told
    assert words in told
    assert f"--load {here}/kept: iteration_0000001 is the newest that is whole" in told


def test_a_checkpoint_of_a_run_of_another_model_is_refused(here: Path, refused: Say) -> None:
    save(here / "kept", 1, model=changed(here / "other", intermediate_size=96))
    told = refused("--load", "kept")
    assert f"--load {here}/kept/iteration_0000001 is of another model: it has" in told
    assert "decoder.layers.0.mlp.linear_fc2.weight has shape (128, 96) in float32 there" in told
