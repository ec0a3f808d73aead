"""A quantized model as --hf-checkpoint: accepted by a dry run where no engine of it is pushed to
and its weights are not those that are trained. What it would leave quantized in a model that is
saved is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.cli.train import main as train
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.models.registry import families, open_model
from agentrl.models.shapes import shapes_of, wholes_of
from agentrl.rollout_file import Rollouts, write_rollouts
from agentrl.types import LeaseHeader
from scripts.header_only import write_model, write_torch_dist

DEFAULT_JOB = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
ROWS = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
IMITATION = "--loss-type sft_loss --prompt-data rows.jsonl --input-key messages --load dist"
ALONE = f"--preset {DEFAULT} --load-debug-rollout-data saved.rollouts"
EYES, MTP = "model.visual.blocks.0.attn.proj.weight", "mtp.layers.0.mlp.down_proj.weight"
Say = Callable[..., tuple[int, str]]


@pytest.fixture
def dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Say:
    """A dry run with a quantized model that sees as --hf-checkpoint: what it says. Beside it lie
    its weights in Megatron's format. Tensors that no layer has are of the types that are named."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEFAULT_JOB / name, model)
    config = {**families()["qwen3-5-vl"].tiny, "vocab_size": 2048, "max_position_embeddings": 1024}
    config |= {"quantization_config": {"quant_method": "fp8"}}
    (model / "config.json").write_text(json.dumps(config))
    (tmp_path / "rows.jsonl").write_text(ROWS * 8)
    write_rollouts(tmp_path / "saved.rollouts", Rollouts(LeaseHeader(1, []), []), lambda _: ())
    described = open_model(model, None)
    write_torch_dist(tmp_path / "dist", wholes_of(described))

    def say(flags: str, eyes: str = "BF16", mtp: str = "BF16") -> tuple[int, str]:
        write_model(model, shapes_of(described), "F8_E4M3")
        add(model / "model.safetensors", {EYES: eyes, MTP: mtp})
        argv = ["--hf-checkpoint", str(model), *flags.split()]
        code = train(
            [*argv, "--device", "cpu", "--chat-format", "qwen", "--dry-run"], "train_async"
        )
        return code, capsys.readouterr().err

    return say


def add(path: Path, types: dict[str, str]) -> None:
    """A tensor of each name and type behind those in a file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    for name, kind in types.items():
        header[name] = {"dtype": kind, "shape": [4], "data_offsets": [len(rest), len(rest) + 8]}
        rest += bytes(8)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + rest)


@pytest.mark.parametrize(
    "flags", [IMITATION, f"{ALONE} --load dist", f"--preset {DEFAULT} --debug-rollout-only"]
)
def test_it_is_accepted_where_nothing_is_pushed_and_the_learner_has_other_weights(
    flags: str, dry_run: Say
) -> None:
    code, said = dry_run(flags)
    assert code == 0, said


@pytest.mark.parametrize("flags", [IMITATION.removesuffix(" --load dist"), ALONE])
def test_a_learner_does_not_begin_with_its_weights(flags: str, dry_run: Say) -> None:
    code, said = dry_run(flags)
    assert code == 2
    assert "(quantization_config: fp8): this waits for training in FP8" in said
    assert "give the learner a checkpoint in bfloat16 or float32" in said


@pytest.mark.parametrize("flags", [IMITATION, f"{ALONE} --load dist"])
def test_a_tensor_that_would_be_saved_quantized_is_refused_by_name(
    flags: str, dry_run: Say
) -> None:
    code, said = dry_run(flags, mtp="F8_E4M3")
    assert code == 2
    assert f"--hf-checkpoint {Path.cwd() / 'model'} has {MTP} in F8_E4M3: no layer here" in said
    assert "name the same model in F64, F32, F16, BF16 in its place" in said
    assert EYES not in said


def test_engines_that_are_not_pushed_to_may_serve_it_whatever_its_tensors_are(dry_run: Say) -> None:
    code, said = dry_run(f"--preset {DEFAULT} --debug-rollout-only --load dist", mtp="F8_E4M3")
    assert code == 0, said
