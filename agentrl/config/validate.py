"""Rules between fields: what cannot run is refused here, before anything starts.

A single value's bounds live at its field. Every refusal says what, by which flag, the numbers, and
what to do. What the rooms alone can judge (an Env's arguments, a Megatron layout) they refuse.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentrl.config.asynchrony import about_asynchrony, notes_on_asynchrony
from agentrl.config.device import Device
from agentrl.config.lengths import notes_on_lengths
from agentrl.config.megatron import MegatronSettings
from agentrl.config.model import ModelSummary, read_model
from agentrl.config.objective import about_objective
from agentrl.config.refusals import beside, gather
from agentrl.config.refused import about_refused
from agentrl.config.run import RunConfig
from agentrl.config.toml import dump_config
from agentrl.config.unread import about_unread
from agentrl.errors import ConfigError
from agentrl.paths import kind_of

__all__ = ["validate"]

_SCALES = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)(|k|M|Ki|Mi)")
_SLICE = re.compile(r"@\[-?\d*:-?\d*\]$")


def validate(config: RunConfig, said: Mapping[str, str] | None = None) -> list[str]:
    """Check `config`, of which the user said the fields `said` (spelled so); returns notes on what
    will run but deserves a look.

    Raises ConfigError with all that is refused. Reads the model's config.json and looks for the
    named files.
    """
    device: Device | None = None if config.device == "auto" else config.device
    refused = [
        *about_unread(config, said or {}),
        *about_refused("sglang", config.sglang, device),
        *about_refused("router", config.router),
        *_about_batch(config),
        *about_asynchrony(config),
        *_about_sampling(config),
        *about_objective(config),
        *_about_evaluations(config),
        *_about_devices(config),
        *_about_data(config),
    ]
    notes: list[str] = []

    def check_model() -> None:
        model = read_model(_model_dir(config))
        refused.extend(_about_lengths(config, model))
        notes.extend(notes_on_lengths(config, model))

    with beside(refused):
        gather(check_model, lambda: _check_settings(config))
    return _notes(config) + notes


def _check_settings(config: RunConfig) -> None:
    MegatronSettings.from_config(config)
    dump_config(config)


def _about_batch(config: RunConfig) -> Iterator[str]:
    groups, episodes = config.rollout_batch_size, config.n_samples_per_prompt
    steps = config.num_steps_per_rollout
    if groups % steps:
        yield (
            f"--rollout-batch-size {groups} groups x --n-samples-per-prompt {episodes} cannot be "
            f"shared by --num-steps-per-rollout {steps}: a step takes whole groups; make "
            f"--rollout-batch-size a multiple of {steps}"
        )
    if config.min_group_size is not None and config.min_group_size > episodes:
        yield (
            f"--min-group-size {config.min_group_size} is more than --n-samples-per-prompt "
            f"{episodes}: no group could ever be trained; make it {episodes} or less"
        )


def _about_sampling(config: RunConfig) -> Iterator[str]:
    is_cut = config.rollout_top_p < 1 or config.rollout_top_k != -1
    if is_cut and config.mode == "policy":
        yield (
            f"--rollout-top-p {config.rollout_top_p:g} and --rollout-top-k {config.rollout_top_k}: "
            "training needs the probabilities of all tokens, and engines return none for those "
            "that were cut off; use 1 and -1 (--rollout-temperature is free)"
        )
    if config.turn_timeout_s > config.episode_timeout_s:
        yield (
            f"--turn-timeout-s {config.turn_timeout_s:g} is longer than --episode-timeout-s "
            f"{config.episode_timeout_s:g}: no turn could use it; lower the first or raise the "
            "second"
        )


def _about_evaluations(config: RunConfig) -> Iterator[str]:
    interval, iterations = config.eval_interval, config.num_rollout
    if config.eval_mode == "pinned" and interval and iterations and iterations <= interval:
        yield (
            f"--eval-mode pinned with --eval-interval {interval} and --num-rollout {iterations}: "
            "no evaluation beside training would come before the last push; lower "
            f"--eval-interval below {iterations}, or leave both out"
        )


def _about_devices(config: RunConfig) -> Iterator[str]:
    per_engine, devices = config.rollout_num_gpus_per_engine, config.rollout_num_gpus
    if devices is not None and devices % per_engine:
        yield (
            f"--rollout-num-gpus {devices} is not a multiple of --rollout-num-gpus-per-engine "
            f"{per_engine}: {devices % per_engine} devices would stay idle"
        )
    yield from _about_engine(config)


def _about_engine(config: RunConfig) -> Iterator[str]:
    """SGLang's own flags may shape an engine, but not take other devices than it is given."""
    if (nodes := config.sglang.get("nnodes", 1)) != 1:
        yield (
            f"--sglang-nnodes {nodes}: an engine runs on one node; its devices are "
            "--rollout-num-gpus-per-engine, and --rollout-num-gpus makes more engines"
        )
    if (stages := config.sglang.get("pp_size", 1)) != 1:
        yield (
            f"--sglang-pp-size {stages}: every stage of an engine would join a weight push under "
            "the ranks of the first one, and the push would wait until its deadline; spread an "
            "engine by tensor parallelism (--rollout-num-gpus-per-engine)"
        )
    yield from _about_checksums(config)
    per_engine = config.rollout_num_gpus_per_engine
    tensor = config.sglang.get("tp_size", per_engine)
    if tensor != per_engine:
        yield (
            f"--sglang-tp-size {tensor} takes {tensor} devices, --rollout-num-gpus-per-engine "
            f"gives an engine {per_engine}; use --rollout-num-gpus-per-engine {tensor}"
        )


def _about_checksums(config: RunConfig) -> Iterator[str]:
    """The learner can compute SGLang's digest of a whole parameter as it was pushed, no other."""
    if not config.check_weight_update_equal:
        return
    reason = ""
    if (ranks := config.rollout_num_gpus_per_engine) > 1:
        reason = f"each of the {ranks} ranks of an engine holds a part of it"
    elif kind := config.sglang.get("quantization"):
        reason = f"--sglang-quantization {kind} changes it"
    elif config.sglang.get("dtype") == "auto":
        reason = "--sglang-dtype auto does not say in which type it is kept; name one"
    if reason:
        yield (
            "--check-weight-update-equal compares SGLang's digest of each whole parameter with the "
            f"learner's, but {reason}; leave the check out"
        )


def _model_dir(config: RunConfig) -> Path:
    if config.hf_checkpoint is None:
        raise ConfigError(
            "--hf-checkpoint is missing: give a Hugging Face model directory, or leave out "
            "--prompt-data and --env as well to run the preset search-r1-local"
        )
    return Path(config.hf_checkpoint)


def _about_data(config: RunConfig) -> Iterator[str]:
    if config.env is None and config.prompt_data is None:
        yield (
            "--env and --prompt-data are missing: name an environment that brings its tasks, or a "
            "JSONL file of tasks (and --env, unless single-turn answers are to match their labels)"
        )
    if config.prompt_data is not None:
        yield from _about_file("--prompt-data", config.prompt_data)
    words = config.eval_prompt_data
    if len(words) % 2:
        yield (
            f"--eval-prompt-data has {len(words)} words ({' '.join(words)}); "
            "it wants pairs: NAME PATH"
        )
    if repeated := {name for name in words[::2] if words[::2].count(name) > 1}:
        yield (f"--eval-prompt-data names {', '.join(sorted(repeated))} twice; names must differ")
    for path in words[1::2]:
        yield from _about_file("--eval-prompt-data", path)


def _about_file(flag: str, path: str) -> Iterator[str]:
    file = Path(_SLICE.sub("", path))
    kind = kind_of(file)
    if kind == "nothing":
        yield (f"{flag} {path}: there is no file {file.absolute()}")
    elif kind != "a file":
        yield (f"{flag} {path}: {file.absolute()} is {kind}, not a file of rows")
    elif not os.access(file, os.R_OK):
        yield (f"{flag} {path}: {file.absolute()} may not be read by you")


def _about_lengths(config: RunConfig, model: ModelSummary) -> Iterator[str]:
    limits = [
        (name, value)
        for name, value in (
            ("--rollout-max-context-len", config.rollout_max_context_len),
            ("the model's max_position_embeddings", model.max_context),
        )
        if value is not None
    ]
    if not limits:
        return
    name, context = min(limits, key=lambda limit: limit[1])
    if config.rollout_max_context_len not in (None, context):
        yield (
            f"--rollout-max-context-len {config.rollout_max_context_len} is more than {name} "
            f"{context}; lower it to {context}"
        )
    engine = _tokens(config.sglang.get("context_length"))
    if engine is not None and engine < context:
        yield (
            f"--sglang-context-length {engine} is less than {name} {context}: engines would refuse "
            f"turns that the run sends them; give --rollout-max-context-len {engine}"
        )
    if config.rollout_max_response_len >= context and not config.is_supervised:
        yield (
            f"--rollout-max-response-len {config.rollout_max_response_len} leaves no room for a "
            f"prompt within {name} {context}; lower it below {context}"
        )
    if config.rollout_max_prompt_len is not None and config.rollout_max_prompt_len >= context:
        yield (
            f"--rollout-max-prompt-len {config.rollout_max_prompt_len} leaves no room for a turn "
            f"within {name} {context}; lower it below {context}"
        )


def _tokens(value: object) -> int | None:
    """A length as SGLang reads it: 4096, 64k (64 x 1000) or 64Ki (64 x 1024). None: no length."""
    found = _LENGTH.fullmatch(str(value))
    if found is None:
        return None
    number, suffix = found.groups()
    return int(float(number) * _SCALES[suffix])


def _notes(config: RunConfig) -> list[str]:
    notes = []
    held = config.max_concurrent_episodes * config.num_agent_workers
    permits = config.num_engines * config.sglang_server_concurrency
    if held < permits:
        notes.append(
            f"agent workers hold at most {held} episodes and engines have room for {permits} "
            "turns: raise --max-concurrent-episodes or --num-agent-workers to use all of it"
        )
    return notes + notes_on_asynchrony(config)
