"""How engines and the router are started: pure functions from settings to command lines.

Nothing is started here. Settings are SGLang's own names, `ServerArgs` fields and router arguments,
with underscores. The user's settings win over the defaults below, except for the few that would
break the run; those are refused with the reason.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.device import Device
from agentrl.config.engines import ROUTER_POLICY
from agentrl.config.passthrough import Family, spelled
from agentrl.config.refused import about_refused
from agentrl.errors import ConfigError
from agentrl.serving.cpu import ATTENTION_BACKEND, EXACT, PLUGIN_NAME
from agentrl.serving.engine_files import ENGINE_MARK, MEETING_PLACE
from agentrl.serving.key import KEY_FILE
from agentrl.types import EngineKind

__all__ = [
    "ENGINE_DEFAULTS",
    "NEGATABLE",
    "OWN_ADDRESS",
    "ROUTER_DEFAULTS",
    "EnginePart",
    "ProcessSpec",
    "engine_command",
    "router_command",
]


class ProcessSpec(msgspec.Struct, frozen=True):
    """A process to start: its name in the run, its command, and what to set in its environment."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]


class EnginePart(msgspec.Struct, frozen=True):
    """Part `number` (from 0) of an engine of `count` parts, each on a node of its own, whose ranks
    meet at `meets_at` (ADDRESS:PORT, on the node of the first)."""

    number: int
    count: int
    meets_at: str


#: Environment variable of SGLang: the address of its own node.
OWN_ADDRESS = "SGLANG_HOST_IP"

#: Requests carry token ids and want token ids back: no engine needs a tokenizer.
_COMMON = {"skip_tokenizer_init": True, "log_level_http": "warning"}

ENGINE_DEFAULTS: dict[Device, dict[str, Any]] = {
    "cpu": {
        **_COMMON,
        "attention_backend": ATTENTION_BACKEND,
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        # Nothing to overlap with: the scheduler's arithmetic runs on the same cores.
        "disable_overlap_schedule": True,
        # Without it an idle scheduler burns a whole core.
        "sleep_on_idle": True,
        "skip_server_warmup": True,
        # The host's memory is shared with the learner and the workers: SGLang's default would take
        # most of it for the KV cache.
        "mem_fraction_static": 0.2,
        "max_total_tokens": 65536,
    },
    "cuda": dict(_COMMON),
}

#: Sticky by routing key, because a turn's prompt is cached where the turn before it ran. A failure
#: is the client's to see: no retries behind its back, no breaker that outlives a restart.
ROUTER_DEFAULTS: dict[str, Any] = {
    "policy": ROUTER_POLICY,
    "assignment_mode": "min_load",
    "disable_retries": True,
    "disable_circuit_breaker": True,
    "worker_startup_check_interval": 1,
    "health_check_interval_secs": 5,
    "log_level": "warn",
}

#: Boolean ServerArgs that SGLang may turn on by itself: False is spelled `--no-FLAG`. All other
#: booleans are off unless their flag is given. A test compares this with the installed SGLang.
NEGATABLE = frozenset(
    {
        "dcp_replicate_q_proj",
        "dllm_fdfo",
        "enable_decoder_swa_bounded_replay",
        "enable_dsa_fused_indexer",
        "enable_fused_qk_norm_rope",
        "enable_tf32_matmul",
        "enable_tp_lm_head_all_to_all",
        "experts_shared_outer_loras",
        "lora_strict_loading",
        "mm_enable_dp_encoder",
        "ple_offload_embedding",
        "speculative_enable_w4a4_mxfp4_megamoe",
    }
)


def engine_command(
    *,
    model_path: str,
    port: int,
    name: str,
    device: Device,
    extra: Mapping[str, Any],
    dtype: str,
    weight_version: str = "none",
    host: str = "127.0.0.1",
    key_file: str | None = None,
    part: EnginePart | None = None,
    kind: EngineKind = "regular",
    bootstrap_port: int | None = None,
    is_exact: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> ProcessSpec:
    """Command of one SGLang engine, or of one `part` of it.

    `extra` maps ServerArgs fields to values; it wins over `ENGINE_DEFAULTS` (None drops a default).
    `weight_version` labels the weights the engine starts with: "none" until a push names them.
    `key_file` holds the key that it wants with every request: without one it serves everybody.
    `kind`: what it does of a turn; one that prefills listens at `bootstrap_port` for the others.
    `is_exact`: its layers compute as the learner's do (`--true-on-policy-mode`), on a CPU.
    `environ` is what the process will inherit. Raises ConfigError for a refused field.
    """
    settings = {
        "model_path": model_path,
        "host": host,
        "port": port,
        "device": device,
        "dtype": dtype,
        "weight_version": weight_version,
        **ENGINE_DEFAULTS[device],
        **_checked("sglang", extra, device),
        **_part_settings(part),
        **({"disaggregation_mode": kind} if kind in ("prefill", "decode") else {}),
        **({"disaggregation_bootstrap_port": bootstrap_port} if kind == "prefill" else {}),
    }
    num_ranks = int(settings.get("tp_size") or 1)
    return ProcessSpec(
        name=name,
        argv=(sys.executable, "-m", "agentrl.serving.engine_main", *_flags(settings)),
        env=_engine_env(device, num_ranks, part, environ)
        | _state_env(str(settings["dtype"]), environ)
        | _key_env(key_file)
        | _part_env(part, host)
        | ({EXACT: "1"} if is_exact else {}),
    )


def router_command(
    *,
    port: int,
    prometheus_port: int,
    turn_timeout_s: float,
    extra: Mapping[str, Any],
    host: str = "127.0.0.1",
    key_file: str | None = None,
    has_prefill_apart: bool = False,
) -> ProcessSpec:
    """Command of the router. It starts without workers; `RouterControl.add` brings them.

    `turn_timeout_s` is the client's deadline of a turn: the router waits that long and no longer.
    `key_file` holds the key that it wants, which must be that of its engines.
    `has_prefill_apart`: it sends each turn to one engine that prefills and one that decodes.
    `extra` maps router arguments to values. Raises ConfigError for a refused argument.
    """
    settings = {
        "host": host,
        "port": port,
        "prometheus_host": host,
        "prometheus_port": prometheus_port,
        "request_timeout_secs": math.ceil(turn_timeout_s),
        **ROUTER_DEFAULTS,
        **_checked("router", extra),
        "pd_disaggregation": has_prefill_apart,
    }
    argv = (sys.executable, "-m", "agentrl.serving.router_main", *_flags(settings))
    return ProcessSpec(name="router", argv=argv, env=_key_env(key_file))


def _checked(
    family: Family, extra: Mapping[str, Any], device: Device | None = None
) -> Mapping[str, Any]:
    refused = about_refused(family, extra, device)
    refused += [
        f"{spelled(family, f'--{field}')}: {field!r} is no field name (words joined by underscores)"
        for field in extra
        if not field.isidentifier()
    ]
    if refused:
        raise ConfigError("\n".join(refused))
    return extra


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """Each setting as SGLang's argument parsers read it."""
    argv: list[str] = []
    for field, value in settings.items():
        flag = "--" + field.replace("_", "-")
        if value is True:
            argv.append(flag)
        elif value is False:
            if field in NEGATABLE:
                argv.append("--no-" + flag[2:])
        elif isinstance(value, (list, tuple)):
            argv += [flag, *map(str, value)]
        elif isinstance(value, dict):
            argv += [flag, json.dumps(value)]
        elif value is not None:
            argv += [flag, str(value)]
    return argv


def _part_settings(part: EnginePart | None) -> dict[str, Any]:
    if part is None:
        return {}
    return {"nnodes": part.count, "node_rank": part.number, "dist_init_addr": part.meets_at}


def _part_env(part: EnginePart | None, host: str) -> dict[str, str]:
    # SGLang would look for the node's own address on the Internet.
    if part is None:
        return {}
    return {MEETING_PLACE: f"tcp://{part.meets_at}", OWN_ADDRESS: host}


def _key_env(key_file: str | None) -> dict[str, str]:
    return {} if key_file is None else {KEY_FILE: key_file}


def _state_env(dtype: str, environ: Mapping[str, str]) -> dict[str, str]:
    # SGLang keeps the state of a convolution (delta nets) in bfloat16, whatever the model is in.
    kept = {"half": "float16", "float": "float32"}.get(dtype, dtype)
    name = "SGLANG_MAMBA_CONV_DTYPE"
    return {} if kept == "auto" else {name: environ.get(name, kept)}


def _engine_env(
    device: Device, num_ranks: int, part: EnginePart | None, environ: Mapping[str, str]
) -> dict[str, str]:
    # The client sees a lost engine by its own errors. SGLang's health check would generate a token
    # each time, and fail while a weight push holds generation.
    # The router keeps idle connections longer than SGLang's 5 s: a request that left on one as it
    # was being closed would be lost, and nobody sends it again.
    env = {
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        "SGLANG_TIMEOUT_KEEP_ALIVE": "3600",
        ENGINE_MARK: "1",
    }
    if device != "cpu":
        return env
    standins = str(Path(__file__).with_name("standins"))
    inherited = environ.get("PYTHONPATH")
    env |= {
        "PYTHONPATH": f"{standins}{os.pathsep}{inherited}" if inherited else standins,
        "SGLANG_PLATFORM": PLUGIN_NAME,
        "SGLANG_EXTERNAL_MODEL_PACKAGE": environ.get(
            "SGLANG_EXTERNAL_MODEL_PACKAGE", "agentrl.serving.architectures"
        ),
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        # With the stand-ins present torch believes that it could compile Triton kernels.
        "TORCHDYNAMO_DISABLE": "1",
    }
    if num_ranks > 1:  # a core for each rank that is here
        here = range(num_ranks // (part.count if part else 1))
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, here))
    return env
