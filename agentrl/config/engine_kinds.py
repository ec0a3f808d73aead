"""What engines of several kinds cannot be: `--sglang-config`, `--prefill-num-servers`.

Every line names the place in the file, and what to do. The settings of a group are judged as flags
`--sglang-*` are, over those of all engines (`engine_settings`).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.config.device import Device
from agentrl.config.engine_groups import (
    KINDS,
    PLACEHOLDER,
    EngineGroup,
    groups_of_file,
    listed_groups,
)
from agentrl.config.engine_settings import FILE, own_settings
from agentrl.config.entries import unknown
from agentrl.config.passthrough import spelled
from agentrl.config.prefill_apart import PREFILL, about_prefill
from agentrl.config.refused import about_refused
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.hub import cached

__all__ = ["about_engine_kinds"]

_OF_MODEL = (
    *("name", "model_path", "update_weights", "num_gpus_per_engine"),
    *("server_groups", "engine_groups"),
)
_OF_GROUP = ("worker_type", "num_gpus", "num_gpus_per_engine", "overrides")
_ONE_MODEL = (
    "engines of a run serve the one model that it trains. A reference is --ref-load, a teacher "
    "--use-opd with --opd-type sglang and --rm-url, a judge or a reward model a server that "
    "--rm-url names, or a service of the Env (docs/envs.md)"
)
#: SGLang settings that learner, client and pushes take to be those of every engine.
_OF_ALL = (
    *("dtype", "quantization", "modelopt_quant", "kv_cache_dtype", "context_length"),
    *("enable_deterministic_inference", "skip_tokenizer_init", "enable_memory_saver"),
    *("enable_symm_mem", "enable_nccl_nvls", "enable_kv_cache_sharding", "cpu_offload_gb"),
)


def about_engine_kinds(config: RunConfig, device: Device | None = None) -> Iterator[str]:
    """A line for each thing about the kinds of engines that cannot be."""
    names = [FILE] * bool(config.sglang_config) + [PREFILL] * (
        config.prefill_num_servers is not None
    )
    if len(names) > 1:
        yield f"{FILE} and {PREFILL}: both say which engines there are; give one of the two"
    if names and config.rollout_external_engine_addrs:
        yield (
            f"{names[0]} and --rollout-external-engine-addrs: engines that somebody else started "
            "are what they are; leave out one of the two"
        )
    elif config.sglang_config:
        yield from _about_file(config, device)
    elif config.prefill_num_servers is not None:
        yield from _about_number(config, config.prefill_num_servers)
    if config.has_prefill_apart:
        yield from about_prefill(config)


def _about_number(config: RunConfig, wanted: int) -> Iterator[str]:
    num_engines = config.num_engines
    if num_engines and wanted >= num_engines:
        yield (
            f"{PREFILL} {wanted} leaves none of {num_engines} engines to decode; give more "
            "engines (--rollout-num-gpus), or a smaller number"
        )


# ---- the file -----------------------------------------------------------------------------------


def _about_file(config: RunConfig, device: Device | None) -> Iterator[str]:
    said = config.sglang_config
    models = said.get("sglang")
    yield from unknown(said, ("sglang",), FILE)
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        yield f"{FILE}: `sglang` must be a list of models, each with `server_groups`"
        return
    for index, other in enumerate(models[1:], start=1):
        name = other.get("name") if isinstance(other, dict) else other
        yield f"{FILE}: sglang[{index}] ({name!s:.40}): {_ONE_MODEL}"
    yield from _about_model(config, models[0])
    _, groups = listed_groups(said)
    if not groups:
        yield f"{FILE}: sglang[0]: `server_groups` must be a list, each with a `worker_type`"
        return
    lines = [
        line
        for index, told in enumerate(groups)
        for line in _about_group(config, told, f"{FILE}: server_groups[{index}]", device)
    ]
    yield from lines
    if not lines:
        yield from _about_all(config)


def _about_model(config: RunConfig, model: Mapping[str, Any]) -> Iterator[str]:
    where = f"{FILE}: sglang[0]"
    yield from unknown(dict(model), _OF_MODEL, where)
    if "server_groups" in model and "engine_groups" in model:
        yield f"{where}: engine_groups is another name of server_groups; give one of the two"
    if model.get("update_weights", True) is not True:
        yield f"{where}: update_weights {model['update_weights']!r}: {_ONE_MODEL}"
    path = model.get("model_path")
    if path is not None and not _is_same(str(path), str(config.hf_checkpoint)):
        yield (
            f"{where}: model_path {path} is not --hf-checkpoint {config.hf_checkpoint}: "
            f"{_ONE_MODEL}"
        )
    yield from _about_count(model, "num_gpus_per_engine", where)


def _about_group(config: RunConfig, told: Any, where: str, device: Device | None) -> Iterator[str]:
    if not isinstance(told, dict):
        yield f"{where} is {told!r:.60}, and must be a table with a `worker_type`"
        return
    yield from unknown(told, _OF_GROUP, where)
    kind = told.get("worker_type")
    if kind == "encoder":
        yield (
            f"{where}: worker_type encoder: models that see are trained with the encoder in each "
            "engine; leave the group out"
        )
    elif kind not in KINDS:
        yield f"{where}: worker_type is {kind!r:.40}; choose from {', '.join(KINDS)}"
    if "num_gpus" not in told:
        yield f"{where}: num_gpus is missing: the devices of the group"
    sizes = [
        *_about_count(told, "num_gpus", where),
        *_about_count(told, "num_gpus_per_engine", where),
    ]
    yield from sizes
    overrides = told.get("overrides", {})
    if not isinstance(overrides, dict):
        yield f"{where}: overrides is {overrides!r:.60}, and must hold SGLang settings by name"
        return
    yield from _about_overrides(overrides, f"{where}: overrides", device)
    group = next((g for g in _groups(config) if where.endswith(g.place)), None)
    if group is not None and kind != PLACEHOLDER and group.num_gpus % group.size:
        yield (
            f"{where}: num_gpus {group.num_gpus} is not a multiple of num_gpus_per_engine "
            f"{group.size}: {group.num_gpus % group.size} devices would stay idle; a group of "
            f"worker_type {PLACEHOLDER} keeps devices empty"
        )


def _about_count(told: Mapping[str, Any], key: str, where: str) -> Iterator[str]:
    value = told.get(key, 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        yield f"{where}: {key} is {value!r:.40}, and must be a whole number of 1 or more"


def _about_overrides(
    overrides: Mapping[str, Any], where: str, device: Device | None = None
) -> Iterator[str]:
    for key, value in overrides.items():
        try:
            own_settings({key: value})
        except ConfigError as error:
            yield f"{where}: {str(error).removeprefix('overrides: ')}"
            continue
        if key in _OF_ALL:
            flag = spelled("sglang", "--" + key.replace("_", "-"))
            yield f"{where}: {key} holds for all engines of a run; give {flag}"
        elif key == "tp_size":
            yield f"{where}: tp_size: use num_gpus_per_engine of the group"
        elif key == "disaggregation_mode":
            yield f"{where}: disaggregation_mode: use worker_type of the group"
        else:
            yield from (
                f"{where}: {line}" for line in about_refused("sglang", {key: value}, device)
            )


def _about_all(config: RunConfig) -> Iterator[str]:
    """Of groups that are right each by itself."""
    groups, wanted = _groups(config), config.rollout_num_gpus
    kinds, total = {g.kind for g in groups} - {PLACEHOLDER}, sum(g.num_gpus for g in groups)
    if not kinds:
        yield f"{FILE}: all groups are {PLACEHOLDER}, and no engine is left to sample"
    elif kinds == {"prefill"}:
        yield f"{FILE}: no group decodes what the others prefill; add one of worker_type decode"
    elif kinds == {"decode"}:
        yield f"{FILE}: no group prefills for those that decode; add one of worker_type prefill"
    elif "regular" in kinds and len(kinds) > 1:
        yield (
            f"{FILE}: groups of worker_type regular stand beside prefill and decode: the router "
            "sends a turn to a pair or to one engine, and to no mixture; make them all of one sort"
        )
    if wanted is not None and total != wanted:
        yield (
            f"{FILE}: the groups have {total} devices, --rollout-num-gpus {wanted}: make them "
            "agree, or leave the flag out"
        )


def _groups(config: RunConfig) -> list[EngineGroup]:
    return groups_of_file(config.sglang_config, config.rollout_num_gpus_per_engine)


def _is_same(path: str, checkpoint: str) -> bool:
    places = {str(Path(cached(name) or name).absolute()) for name in (path, checkpoint)}
    return len(places) == 1
