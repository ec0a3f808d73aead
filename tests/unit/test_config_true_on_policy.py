"""`--true-on-policy-mode` is refused where learner and engines would not compute the same bits."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.cli.train import main as train
from agentrl.config.device_defaults import check_device
from agentrl.config.run import RunConfig
from agentrl.config.true_on_policy import about_true_on_policy
from agentrl.errors import ConfigError
from agentrl.learner.health import EngineDisagreesError, check_logprobs
from agentrl.learner.metrics import LogprobDiff
from agentrl.learner.tolerance import tolerance_of
from agentrl.models.registry import families, open_model
from agentrl.models.shapes import shapes_of
from scripts.header_only import write_model


def mode(**flags: Any) -> RunConfig:
    return RunConfig(true_on_policy_mode=True, **flags)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"megatron": {"bf16": True}}, "--bf16: the mode is of float32"),
        ({"megatron": {"tensor_model_parallel_size": 2}}, "--tensor-model-parallel-size 2: ranks"),
        ({"megatron": {"context_parallel_size": 2}}, "--context-parallel-size 2: ranks"),
        ({"rollout_num_gpus_per_engine": 2}, "--rollout-num-gpus-per-engine 2: ranks round"),
        ({"sglang": {"dtype": "bfloat16"}}, "--sglang-dtype bfloat16: the engine would compute"),
        ({"sglang": {"attention_backend": "torch_native"}}, "--sglang-attention-backend torch_n"),
        ({"sglang": {"kv_cache_dtype": "fp8_e5m2"}}, "--sglang-kv-cache-dtype fp8_e5m2: the "),
        ({"kv_across_pushes": "keep"}, "--kv-across-pushes keep: a fresh token would look at"),
        ({"kv_cache_versions": 2}, "--kv-cache-versions 2: a fresh token would look at"),
        ({"rollout_external_engine_addrs": ["127.0.0.1:1"]}, "engines of yours compute as they"),
        ({"enable_mtp_training": True}, "--enable-mtp-training: its layers were never compared"),
    ],
)
def test_what_computes_otherwise_is_refused_beside_it_alone(
    flags: dict[str, Any], why: str
) -> None:
    (line,) = about_true_on_policy(mode(**flags))
    assert line.startswith("--true-on-policy-mode and ")
    assert why in line
    assert [*about_true_on_policy(RunConfig(**flags))] == []


def test_what_is_so_anyway_may_be_said() -> None:
    said = mode(sglang={"dtype": "float32", "page_size": 1}, megatron={"bf16": False})
    assert [*about_true_on_policy(said)] == []


def test_it_is_refused_on_gpus() -> None:
    check_device(mode(), "cpu")
    with pytest.raises(ConfigError, match=r"--true-on-policy-mode on a GPU: .* on the CPU alone"):
        check_device(mode(), "cuda")


@pytest.mark.parametrize(
    ("family", "positions", "is_refused"),
    [
        ("llama", {}, True),
        ("qwen3", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, True),
        ("qwen3", {}, False),
    ],
)
def test_a_model_that_was_not_compared_is_refused(
    family: str,
    positions: dict[str, Any],
    is_refused: bool,
    qwen_tokenizer_json: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = {"vocab_size": 1024, "max_position_embeddings": 1024}
    config = {**families()[family].tiny, **sizes, **positions}
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    write_model(tmp_path, shapes_of(open_model(tmp_path, None)))
    (tmp_path / "tokenizer.json").write_text(qwen_tokenizer_json)
    flags = ["--preset", "search-r1-local", "--hf-checkpoint", str(tmp_path), "--dry-run"]
    train([*flags, "--device", "cpu", "--true-on-policy-mode"], "train_async")
    said = capsys.readouterr().err
    assert ("--true-on-policy-mode: no " in said) is is_refused


def test_a_run_bears_no_difference() -> None:
    tolerance = tolerance_of(mode())
    assert check_logprobs(1, LogprobDiff(0.0, 0.0, 256), tolerance) is None
    with pytest.raises(EngineDisagreesError, match="true on-policy mode"):
        check_logprobs(1, LogprobDiff(5e-10, 1.2e-7, 256), tolerance)
    assert tolerance.max_kl == 0.0
