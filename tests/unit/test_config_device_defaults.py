"""What follows from the device: precision and the sharding of the optimizer."""

from typing import Any

import msgspec
import pytest

from agentrl.config.device import Device
from agentrl.config.device_defaults import (
    check_device,
    defaults_for,
    engines_tell_digests,
    for_device,
    notes_on_device,
    without_defaults,
)
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError


def test_a_learner_on_gpus_trains_in_bf16_with_a_distributed_optimizer() -> None:
    settings = MegatronSettings.from_config(for_device(RunConfig(), "cuda"))
    assert settings.bf16
    assert settings.use_distributed_optimizer
    assert settings.accumulate_allreduce_grads_in_fp32


def test_a_learner_on_a_cpu_trains_in_float32_and_shards_nothing() -> None:
    settings = MegatronSettings.from_config(for_device(RunConfig(), "cpu"))
    assert not settings.bf16
    assert not settings.use_distributed_optimizer


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_flags_of_the_user_win_over_the_device(device: Device) -> None:
    given = {"bf16": device == "cpu", "use_distributed_optimizer": False, "num_layers": 2}
    config = RunConfig(megatron=given, sglang={"dtype": "float16"})
    found = for_device(config, device)
    assert found.megatron == given
    assert found.sglang == {"dtype": "float16"}
    assert found == for_device(found, device)


def test_engines_on_gpus_compute_in_the_learners_precision() -> None:
    assert for_device(RunConfig(), "cuda").sglang == {"dtype": "bfloat16"}
    assert for_device(RunConfig(), "cpu").sglang == {}
    assert for_device(RunConfig(loss_type="sft_loss"), "cuda").sglang == {}


def test_float32_on_a_gpu_runs_and_is_remarked_on() -> None:
    slow = RunConfig(megatron={"bf16": False})
    assert "one by one" in notes_on_device(slow, "cuda")[0]
    assert notes_on_device(slow, "cpu") == []
    offloaded = RunConfig(megatron={"bf16": True, "optimizer_cpu_offload": True})
    (note,) = notes_on_device(offloaded, "cpu")
    assert note.startswith("--optimizer-cpu-offload changes nothing on the CPU: ")
    assert notes_on_device(offloaded, "cuda") == []
    assert notes_on_device(RunConfig(), "cuda") == []


def test_the_defaults_of_a_device_are_not_shared_between_runs() -> None:
    defaults_for("cuda")["bf16"] = False
    assert defaults_for("cuda")["bf16"]


def test_digests_of_weights_are_not_compared_on_gpus() -> None:
    check = RunConfig(check_weight_update_equal=True)
    check_device(check, "cpu")
    with pytest.raises(ConfigError, match=r"--check-weight-update-equal .* host memory"):
        check_device(check, "cuda")


def test_a_run_that_began_on_gpus_may_go_on_on_a_cpu_in_its_precision() -> None:
    given = RunConfig(megatron={"num_layers": 2}, sglang={"mem_fraction_static": 0.5})
    written = msgspec.to_builtins(for_device(given, "cuda"))
    begun = RunConfig(**without_defaults(written) | {"device": "cpu"})
    settings = MegatronSettings.from_config(for_device(begun, "cpu"))
    assert not settings.bf16
    assert not settings.use_distributed_optimizer
    assert begun.megatron == given.megatron
    assert begun.sglang == given.sglang


def test_what_a_user_said_of_precision_stays_when_a_run_is_continued() -> None:
    written = msgspec.to_builtins(for_device(RunConfig(megatron={"bf16": False}), "cuda"))
    assert without_defaults(written)["megatron"] == {"bf16": False}


@pytest.mark.parametrize("field", [{"quantization": "fp8"}, {"cpu_offload_gb": 8}])
def test_quantized_and_offloaded_engines_are_not_asked_for_digests(field: dict[str, Any]) -> None:
    assert engines_tell_digests(RunConfig())
    assert not engines_tell_digests(RunConfig(sglang=field))
