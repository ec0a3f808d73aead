"""Commands of engines and router: defaults, overrides, refusals, environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config import answers
from agentrl.config.command_line import read_flags
from agentrl.config.device import Device
from agentrl.config.passthrough import Family, Flag, table
from agentrl.errors import ConfigError
from agentrl.serving.key import KEY_FILE
from agentrl.serving.launch import ProcessSpec, engine_command, router_command

pytestmark = pytest.mark.slow

STANDINS = Path(__file__).parents[2] / "agentrl" / "serving" / "standins"


def command(
    extra: dict[str, object], device: Device = "cpu", environ: dict[str, str] | None = None
) -> ProcessSpec:
    return engine_command(
        model_path="models/tiny",
        port=4000,
        name="sglang-0",
        device=device,
        extra=extra,
        dtype="float32",
        environ=environ or {},
    )


def engine(device: Device = "cpu", **extra: object) -> ProcessSpec:
    return command(extra, device)


def value_of(spec: ProcessSpec, flag: str) -> str:
    return spec.argv[spec.argv.index(flag) + 1]


def test_an_engine_on_a_cpu_host_gets_the_settings_that_make_it_run_there() -> None:
    spec = engine()
    assert spec.argv[:3] == (sys.executable, "-m", "agentrl.serving.engine_main")
    assert value_of(spec, "--model-path") == "models/tiny"
    assert value_of(spec, "--port") == "4000"
    assert value_of(spec, "--device") == "cpu"
    assert value_of(spec, "--attention-backend") == "torch_batched"
    assert value_of(spec, "--weight-version") == "none"
    assert "--sleep-on-idle" in spec.argv
    assert spec.env["SGLANG_PLATFORM"] == "agentrl_cpu"


def test_an_engine_on_a_gpu_host_is_plain_sglang() -> None:
    spec = engine("cuda")
    assert spec.argv[:3] == (sys.executable, "-m", "agentrl.serving.engine_main")
    assert value_of(spec, "--device") == "cuda"
    assert "--attention-backend" not in spec.argv
    assert not {"PYTHONPATH", "SGLANG_PLATFORM", "OMP_NUM_THREADS"} & spec.env.keys()


def test_engine_and_router_are_told_where_their_key_lies_and_not_what_it_is() -> None:
    told = engine_command(
        model_path="m", port=1, name="e", device="cpu", extra={}, dtype="auto", key_file="/k"
    )
    router = router_command(port=1, prometheus_port=2, turn_timeout_s=9, extra={}, key_file="/k")
    assert told.env[KEY_FILE] == router.env[KEY_FILE] == "/k"
    assert KEY_FILE not in engine().env


def test_settings_of_the_user_win_over_the_defaults() -> None:
    spec = engine(attention_backend="intel_amx", max_total_tokens=1024, sleep_on_idle=False)
    assert value_of(spec, "--attention-backend") == "intel_amx"
    assert value_of(spec, "--max-total-tokens") == "1024"
    assert spec.argv.count("--max-total-tokens") == 1
    assert "--sleep-on-idle" not in spec.argv


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_launch_scripts_say_of_an_engine_reaches_it(device: Device) -> None:
    said = {"log_level": "info", "context_length": 4096, "mem_fraction_static": 0.7}
    spec = engine(device, **said)
    for name, value in said.items():
        flag = f"--{name.replace('_', '-')}"
        assert value_of(spec, flag) == str(value)
        assert spec.argv.count(flag) == 1


def passed_on(family: Family) -> list[str]:
    """Flags of a family that slime's scripts pass, and that its program answers."""
    return [name for name, row in answers.rows(family).items() if row.state == "works"]


def words_for(flag: Flag) -> tuple[str, ...]:
    """A value that its kind allows."""
    values = {"bool": (), "int": ("2",), "float": ("0.5",), "str": ("2k",)}
    return flag.choices[:1] if flag.choices else values[flag.kind]


def reaches(family: Family, name: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """The settings that `name` gives on the command line, and what a program has to be told."""
    spelling = name.replace(f"--{family}-", "--", 1)
    (flag,) = [flag for flag in table(family).flags if spelling in flag.names]
    settings = read_flags([name, *words_for(flag)]).values[family]
    return settings, (f"--{flag.key.replace('_', '-')}", *words_for(flag))


@pytest.mark.parametrize("name", passed_on("sglang"))
def test_an_engine_is_told_every_flag_that_scripts_pass_to_it(name: str) -> None:
    settings, told = reaches("sglang", name)
    argv = engine("cuda", **settings).argv
    start = argv.index(told[0])
    assert argv[start : start + len(told)] == told


@pytest.mark.parametrize("name", passed_on("router"))
def test_the_router_is_told_every_flag_that_scripts_pass_to_it(name: str) -> None:
    settings, told = reaches("router", name)
    argv = router_command(port=1, prometheus_port=2, turn_timeout_s=9, extra=settings).argv
    start = argv.index(told[0])
    assert argv[start : start + len(told)] == told


def test_none_drops_a_default() -> None:
    assert "--mem-fraction-static" not in engine(mem_fraction_static=None).argv


def test_values_are_written_as_sglang_parses_them() -> None:
    spec = engine(
        enable_metrics=True,
        enable_tf32_matmul=False,
        cuda_graph_bs=[1, 2, 4],
        json_model_override_args={"max_position_embeddings": 64},
    )
    assert "--enable-metrics" in spec.argv
    assert "--no-enable-tf32-matmul" in spec.argv
    start = spec.argv.index("--cuda-graph-bs")
    assert spec.argv[start + 1 : start + 4] == ("1", "2", "4")
    assert value_of(spec, "--json-model-override-args") == '{"max_position_embeddings": 64}'


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("model_path", "other", "--hf-checkpoint"),
        ("port", 1, "places its engines"),
        ("weight_version", "v1", "the learner publishes"),
        ("moe_dp_size", 2, "by --sglang-ep-size"),
        ("enable_dp_attention_local_control_broadcast", True, "would wait for ever"),
        ("enable_deterministic_inference", True, "torch_native"),
        ("api_key", "mine", "a key of its own"),
        ("admin_api_key", "mine", "a key of its own"),
        ("tokenizer_worker_num", 2, "no key"),
        ("enable_eplb", True, "moves weights"),
        ("speculative_algorithm", "EAGLE", "those of GPUs"),
        ("dist_init_addr", "10.0.0.1:1", "chooses where"),
        ("--port", 1, "no field name"),
    ],
)
def test_settings_that_would_break_the_run_are_refused_with_the_reason(
    field: str, value: object, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        command({field: value})


def test_a_refusal_of_cpu_hosts_does_not_reach_gpu_hosts() -> None:
    assert (
        "--enable-deterministic-inference"
        in engine("cuda", enable_deterministic_inference=True).argv
    )


def test_the_environment_of_the_host_is_extended_not_replaced() -> None:
    spec = command({}, environ={"PYTHONPATH": "/elsewhere", "OMP_NUM_THREADS": "8"})
    assert spec.env["PYTHONPATH"] == f"{STANDINS}{os.pathsep}/elsewhere"
    assert spec.env["OMP_NUM_THREADS"] == "8"


def test_states_of_convolutions_are_kept_in_the_type_of_the_model() -> None:
    kept = "SGLANG_MAMBA_CONV_DTYPE"
    assert engine(dtype="float").env[kept] == "float32"
    assert engine(dtype="bfloat16").env[kept] == "bfloat16"
    assert kept not in engine("cuda", dtype="auto").env
    assert command({"dtype": "float32"}, environ={kept: "bfloat16"}).env[kept] == "bfloat16"


def test_tensor_parallel_ranks_on_a_cpu_host_are_bound_to_cores() -> None:
    assert engine(tp_size=2).env["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in engine().env


def test_the_router_is_sticky_and_leaves_failures_to_the_client() -> None:
    spec = router_command(port=1, prometheus_port=2, turn_timeout_s=10.5, extra={})
    assert value_of(spec, "--policy") == "manual"
    assert value_of(spec, "--assignment-mode") == "min_load"
    assert value_of(spec, "--request-timeout-secs") == "11"
    assert {"--disable-retries", "--disable-circuit-breaker"} <= set(spec.argv)


def test_router_settings_can_be_overridden_or_refused() -> None:
    spec = router_command(
        port=1, prometheus_port=2, turn_timeout_s=9, extra={"policy": "round_robin"}
    )
    assert value_of(spec, "--policy") == "round_robin"
    with pytest.raises(ConfigError, match="have received weights"):
        router_command(port=1, prometheus_port=2, turn_timeout_s=9, extra={"worker_urls": ["x"]})
    with pytest.raises(ConfigError, match="a key of its own"):
        router_command(port=1, prometheus_port=2, turn_timeout_s=9, extra={"api_key": "mine"})


def run_python(code: str, path: str, *options: str) -> str:
    result = subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return result.stdout.strip()


def test_stand_ins_import_as_the_packages_they_stand_for() -> None:
    """Also where they are installed, as triton is with the PyTorch of the package index."""
    code = """
import sitecustomize  # without site-packages (-S) Python does not run it
import triton, triton.language as tl
from triton.runtime.autotuner import OutOfResources
from torchvision.transforms import InterpolationMode

@triton.autotune(configs=[triton.Config({}, num_warps=4)], key=["n"])
@triton.jit
def kernel(x: tl.constexpr | None): return x

class Tensor(tl.tensor): pass

assert kernel(3) == 3
assert issubclass(OutOfResources, Exception) and not isinstance(3, tl.tensor)
assert {InterpolationMode.BICUBIC: 1} and triton.cdiv(5, 2) == 3 and triton.next_power_of_2(5) == 8
print(triton.__version__)
"""
    assert run_python(code, str(STANDINS), "-S") == "3.0.0"


def test_a_package_that_is_installed_is_not_stood_in_for(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("genuine = True")
    path = f"{STANDINS}{os.pathsep}{tmp_path}"
    assert run_python("import triton; print(triton.genuine)", path) == "True"


def test_another_sitecustomize_on_the_path_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.marker = 'ran'")
    path = f"{STANDINS}{os.pathsep}{tmp_path}"
    assert run_python("import sys, triton; print(sys.marker)", path) == "ran"


def test_the_platform_plugin_is_found_and_steps_aside_where_another_is_wanted() -> None:
    code = """
import os
from importlib.metadata import entry_points
[plugin] = [p for p in entry_points(group="sglang.srt.platforms") if p.name == "agentrl_cpu"]
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
print(plugin.load()())
os.environ["SGLANG_PLATFORM"] = "agentrl_cpu"
print(plugin.load()())
"""
    assert run_python(code, "").split() == ["None", "agentrl.serving.cpu_platform:HostPlatform"]


def test_on_a_cpu_no_model_is_put_on_the_device_that_torch_was_built_for() -> None:
    """A build with CUDA names it as its device, though the host has none."""
    code = """
import os, torch
torch.get_device_module = lambda device=None: torch.cuda
os.environ["SGLANG_PLATFORM"] = "agentrl_cpu"
from sglang.srt.platforms import current_platform
print(type(current_platform).__name__)
print(torch.get_device_module().__name__, torch.get_device_module("cuda").__name__)
"""
    found = run_python(code, str(STANDINS)).split()
    assert found == ["HostPlatform", "torch.cpu", "torch.cuda"]
