"""Rules between fields: what cannot run is refused here, before anything starts.

A single value's bounds live at its field. Every refusal says what, by which flag, the numbers, and
what to do. What the rooms alone can judge (an Env's arguments, a Megatron layout) they refuse.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentrl.config.asynchrony import about_asynchrony, notes_on_asynchrony
from agentrl.config.conditions import STREAMING
from agentrl.config.custom_config import about_custom_config
from agentrl.config.device import Device
from agentrl.config.engine_kinds import about_engine_kinds
from agentrl.config.engine_settings import ways_of_groups
from agentrl.config.engines import about_attention_ranks, notes_on_engines
from agentrl.config.entries import notes_on_rendering
from agentrl.config.env_vars import about_env_vars, notes_on_env_vars
from agentrl.config.eval_function import about_eval_function, notes_on_eval_function
from agentrl.config.eval_sets import EvalSet, eval_sets, named_sets
from agentrl.config.evaluations import about_evaluations, about_set, notes_on_evaluations
from agentrl.config.external_engines import about_external_engines
from agentrl.config.external_router import about_external_router
from agentrl.config.first_weights import about_weights
from agentrl.config.freezing import about_freezing
from agentrl.config.lengths import about_lengths, notes_on_lengths
from agentrl.config.megatron import MegatronSettings, notes_on_settings
from agentrl.config.mixture import FLAG as MIX
from agentrl.config.mixture import MixPart, parts_of, ways_said
from agentrl.config.model import ModelSummary, read_model
from agentrl.config.objective import (
    about_objective,
    about_served_temperature,
    notes_on_objective,
)
from agentrl.config.port_range import about_port_range
from agentrl.config.profiling import about_profiling
from agentrl.config.rates import about_rates
from agentrl.config.refusals import beside, gather
from agentrl.config.refused import about_refused
from agentrl.config.retention import about_retention, notes_on_retention
from agentrl.config.rollout_function import about_rollout_function, notes_on_rollout_function
from agentrl.config.rollouts import about_rollouts, notes_on_rollouts
from agentrl.config.run import RunConfig
from agentrl.config.sampling import about_sampling, notes_on_sampling
from agentrl.config.toml import dump_config
from agentrl.config.tracking import about_tracking, notes_on_tracking
from agentrl.config.true_on_policy import about_true_on_policy
from agentrl.config.unread import about_unread, notes_on_unread
from agentrl.errors import ConfigError
from agentrl.paths import kind_of, matching

__all__ = ["about_engine_ranks", "validate"]

_SLICE = re.compile(r"@\[-?\d*:-?\d*\]$")


def validate(config: RunConfig, said: Mapping[str, str] | None = None) -> list[str]:
    """Check `config`, of which the user said the fields `said` (spelled so); returns notes on what
    will run but deserves a look.

    Raises ConfigError with all that is refused. Reads the model's config.json and looks for the
    named files.
    """
    device: Device | None = None if config.device == "auto" else config.device
    parts, wrong = _parts(config)
    ways = ways_said(config)
    refused = [
        *wrong,
        *about_unread(config, said or {}, ways),
        *about_refused("sglang", config.sglang, device),
        *about_refused("router", config.router),
        *_about_batch(config),
        *about_asynchrony(config),
        *about_sampling(config),
        *_about_deadlines(config),
        *about_weights(config),
        *about_retention(config),
        *about_objective(config),
        *about_true_on_policy(config),
        *(() if config.eval_only else about_rates(config)),
        *about_freezing(config),
        *about_evaluations(config),
        *about_rollouts(config),
        *about_rollout_function(config),
        *about_eval_function(config),
        *(() if config.eval_only else about_profiling(config)),
        *_about_devices(config),
        *about_engine_kinds(config, device),
        *about_external_engines(config),
        *about_external_router(config),
        *about_tracking(config),
        *about_env_vars(config),
        *about_port_range(config),
        *about_custom_config(config),
        *_about_data(config),
    ]
    notes: list[str] = []
    sets: list[EvalSet] = []

    def check_model() -> None:
        model = read_model(_model_dir(config))
        refused.extend(about_lengths(config, model))
        for one in (one for one in sets if one.config != config):
            refused.extend(line for line in about_set(one, model) if line not in refused)
        for part in parts:
            refused.extend(line for line in _about_part(part, model) if line not in refused)
        notes.extend(notes_on_lengths(config, model))
        notes.extend(notes_on_retention(config, model))

    def check_sets() -> None:
        if wrong:
            return
        sets.extend(eval_sets(config).values())
        named = named_sets(config).values()
        usual = "--eval-prompt-data" if config.eval_config is None else "--eval-config"
        of_files = {(_whose(one, usual), one.path) for one in named if one.path is not None}
        for whose, path in sorted(of_files):
            refused.extend(_about_file(whose, path))

    with beside(refused):
        gather(check_sets, check_model, lambda: _check_settings(config))
    return [
        *_notes(config),
        *_notes_on_parts(config, parts),
        *notes_on_evaluations(config, sets),
        *notes,
        *notes_on_unread(config, said or {}, ways),
        *notes_on_settings(config),
        *notes_on_rendering(config, [(part.whose, part.config) for part in parts]),
        *notes_on_objective(config, said or {}),
    ]


def _whose(one: EvalSet, usual: str) -> str:
    """What names the rows of a set."""
    return f"{MIX}: {one.part}: eval" if one.part else usual


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


def _about_deadlines(config: RunConfig) -> Iterator[str]:
    if config.turn_timeout_s > config.episode_timeout_s:
        yield (
            f"--turn-timeout-s {config.turn_timeout_s:g} is longer than --episode-timeout-s "
            f"{config.episode_timeout_s:g}: no turn could use it; lower the first or raise the "
            "second"
        )
    if (config.reward_timeout_s or 0.0) > config.episode_timeout_s:
        yield (
            f"--reward-timeout-s {config.reward_timeout_s:g} is longer than --episode-timeout-s "
            f"{config.episode_timeout_s:g}, within which an answer gets its reward; lower the "
            "first or raise the second"
        )


def _about_devices(config: RunConfig) -> Iterator[str]:
    per_engine, devices = config.rollout_num_gpus_per_engine, config.rollout_num_gpus
    if devices is not None and devices % per_engine and not config.sglang_config:
        yield (
            f"--rollout-num-gpus {devices} is not a multiple of --rollout-num-gpus-per-engine "
            f"{per_engine}: {devices % per_engine} devices would stay idle"
        )
    said: set[str] = set()
    for where, way in ways_of_groups(config):
        lines = [line for line in _about_engine(way) if line not in said]
        said.update(lines)
        yield from (f"{where}: {line}" if where else line for line in lines)


def _about_engine(config: RunConfig) -> Iterator[str]:
    """SGLang's own flags may shape an engine, but not take other devices than it is given."""
    yield from about_engine_ranks(config)
    yield from about_attention_ranks(config)
    yield from _about_disk_pushes(config)
    yield from _about_kept_caches(config)
    yield from _about_checksums(config)
    per_engine = config.rollout_num_gpus_per_engine
    tensor = config.sglang.get("tp_size", per_engine)
    if tensor != per_engine:
        yield (
            f"--sglang-tp-size {tensor} takes {tensor} devices, --rollout-num-gpus-per-engine "
            f"gives an engine {per_engine}; use --rollout-num-gpus-per-engine {tensor}"
        )


def about_engine_ranks(config: RunConfig) -> Iterator[str]:
    """Ways to spread an engine that no run has."""
    if (nodes := config.sglang.get("nnodes", 1)) != 1:
        yield (
            f"--sglang-nnodes {nodes}: an engine of more devices than a node has is spread over "
            "nodes by itself; its devices are --rollout-num-gpus-per-engine, and "
            "--rollout-num-gpus makes more engines"
        )
    if (stages := config.sglang.get("pp_size", 1)) != 1:
        yield (
            f"--sglang-pp-size {stages}: every stage of an engine would join a weight push under "
            "the ranks of the first one, and the push would wait until its deadline; spread an "
            "engine by tensor parallelism (--rollout-num-gpus-per-engine)"
        )


def _about_disk_pushes(config: RunConfig) -> Iterator[str]:
    if config.update_weight_transport == "disk":
        if config.update_weight_disk_dir is None:
            yield (
                "--update-weight-transport disk: give --update-weight-disk-dir as well, a folder "
                "that learner and engines share"
            )
        shared, own = config.update_weight_disk_dir, config.update_weight_local_checkpoint_dir
        if shared is not None and own is not None and _overlap(Path(shared), Path(own)):
            yield (
                f"--update-weight-disk-dir {shared} and --update-weight-local-checkpoint-dir {own} "
                "lie within each other; give each a folder of its own"
            )
        draft = str(config.sglang.get("speculative_algorithm") or "NGRAM").upper()
        if draft != "NGRAM":
            yield (
                f"--update-weight-transport disk and --sglang-speculative-algorithm {draft}: "
                "SGLang would load the files into the draft too; leave out one of the two"
            )
        if config.colocate:
            yield (
                "--update-weight-transport disk and --colocate: engines that share devices with "
                "the learner get weights through the host's memory; leave out one of the two"
            )
    if config.update_weight_mode == "delta":
        if config.update_weight_transport != "disk":
            yield "--update-weight-mode delta: give --update-weight-transport disk as well"
        if config.update_weight_local_checkpoint_dir is None:
            yield (
                "--update-weight-mode delta: give --update-weight-local-checkpoint-dir as well, a "
                "folder on each engine's host whose files are patched"
            )


def _about_kept_caches(config: RunConfig) -> Iterator[str]:
    if not config.keeps_cache:
        return
    reasons = {
        "--colocate": (config.colocate, "engines give up their cache while the learner trains"),
        "--update-weight-transport disk": (
            config.update_weight_transport == "disk",
            "SGLang drops the cache when it loads files",
        ),
        "--use-rollout-routing-replay": (
            config.use_rollout_routing_replay,
            "nobody has compared the experts of a turn that goes on over an old cache",
        ),
    }
    for other, (is_given, why) in reasons.items():
        if is_given:
            yield f"--kv-across-pushes keep and {other}: {why}; leave out one of the two"


def _overlap(one: Path, other: Path) -> bool:
    one, other = one.absolute(), other.absolute()
    return one.is_relative_to(other) or other.is_relative_to(one)


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
    others = config.data_source_path is not None or config.env_mix
    if config.env is None and config.prompt_data is None and not others:
        yield (
            "--env and --prompt-data are missing: name an environment that brings its tasks, or a "
            "file of tasks (and --env, unless single-turn answers are to match their labels)"
        )
    if config.prompt_data is not None:
        yield from _about_file("--prompt-data", config.prompt_data)
    for name in ("prompt_data", "data_source_path") if config.env_mix else ():
        if getattr(config, name) is not None:
            yield (
                f"{MIX} and --{name.replace('_', '-')}: each part of a mixture names tasks of its "
                f"own; put `{name}` into the file, under `defaults` where they share it"
            )


def _parts(config: RunConfig) -> tuple[list[MixPart], list[str]]:
    """The parts of a mixture, or a line for each reason why there are none."""
    try:
        return parts_of(config), []
    except ConfigError as error:
        return [], str(error).splitlines()


def _notes_on_parts(config: RunConfig, parts: Sequence[MixPart]) -> list[str]:
    """How a part is sampled, where that is its own."""
    usual = [*notes_on_sampling(config)]
    return [
        f"{part.whose}: {line}"
        for part in parts
        for line in notes_on_sampling(part.config)
        if line not in usual
    ]


def _about_part(part: MixPart, model: ModelSummary) -> Iterator[str]:
    """What the flags of one part make impossible, and rows that are not there."""
    own = part.config
    for line in (*about_sampling(own), *about_served_temperature(own), *about_lengths(own, model)):
        yield f"{part.whose}: {line}"
    if part.config.prompt_data is not None:
        for line in _about_file("--prompt-data", part.config.prompt_data):
            yield f"{part.whose}: {line}"
    if part.config.dialogue_key is not None and part.config.prompt_data is None:
        yield f"{part.whose}: --loss-type sft_loss imitates dialogues: give it `prompt_data`"


def _about_file(flag: str, path: str) -> Iterator[str]:
    """Which format it has, and whether it is whole, says whoever opens it (`envs/rows`)."""
    file = Path(_SLICE.sub("", path))
    kind = kind_of(file)
    if kind == "nothing":
        if not matching(file):
            yield (f"{flag} {path}: there is no file {file.absolute()}")
    elif kind not in ("a file", "a directory"):
        yield (f"{flag} {path}: {file.absolute()} is {kind}, not a file of rows")
    elif not os.access(file, os.R_OK):
        yield (f"{flag} {path}: {file.absolute()} may not be read by you")


def _notes(config: RunConfig) -> list[str]:
    notes = []
    if config.num_epoch is not None and config.num_rollout is not None:
        notes.append(
            f"--num-epoch {config.num_epoch} is passed over beside --num-rollout, as in slime: the "
            f"run trains {config.num_rollout} iterations and goes through its tasks as often as "
            "these need"
        )
    held = config.max_concurrent_episodes * config.num_agent_workers
    permits = config.num_permits
    if held < permits:
        notes.append(
            f"agent workers hold at most {held} episodes and engines have room for {permits} "
            "turns: raise --max-concurrent-episodes or --num-agent-workers to use all of it"
        )
    notes += [*notes_on_sampling(config), *notes_on_rollouts(config), *notes_on_env_vars(config)]
    notes += [*notes_on_tracking(config), *notes_on_rollout_function(config)]
    notes += notes_on_eval_function(config)
    if config.data_source_path is not None and not config.has_data_source:
        notes.append(
            f"--data-source-path {config.data_source_path}: already so: rows come from "
            "--prompt-data through a durable buffer"
        )
    if config.custom_generate_function_path == STREAMING:
        notes.append(
            f"--custom-generate-function-path {STREAMING}: already so: a turn that is aborted "
            "keeps what it has sampled"
        )
    return notes + notes_on_asynchrony(config) + list(notes_on_engines(config))
