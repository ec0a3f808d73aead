"""Named conditions under which a flag is read (`FlagFact.needs`), and what to do where one fails.

The learner's rooms decide by the same settings; a test compares what they read with what is said
here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentrl.config.run import RunConfig
from agentrl.shipped import ALGORITHMS, TRACKERS

__all__ = [
    "CONDITIONS",
    "GENERATE",
    "ROW_ENVS",
    "STREAMING",
    "Condition",
    "env_of",
    "has_shipped_estimator",
]

#: The environments for rows of a prompt and a label; that of a run which names none is the first.
ROW_ENVS = ("single-turn", "tools", "generate")
#: That of them which plays the function of --custom-generate-function-path.
GENERATE = ROW_ENVS[2]
#: A function of slime's own: a turn of its is what a turn here is.
STREAMING = "slime.rollout.sglang_streaming_rollout.generate_streaming"
#: slime's own choice among groups that were given back: the first.
_POP_FIRST = "slime.rollout.data_source.pop_first"
_ROW_ENVS = f"{', '.join(ROW_ENVS[:-1])} and {ROW_ENVS[-1]}"


def env_of(values: Mapping[str, Any]) -> str | None:
    """The environment of flags: the one that is named, that of a function which plays episodes, or
    of a run with data, or a mixture, the first of those for rows."""
    functions = (values.get("custom_generate_function_path"), values.get("rollout_function_path"))
    if any(map(_is_function, functions)):
        return str(values.get("env", GENERATE))
    usual = ROW_ENVS[0] if values.keys() & {"prompt_data", "data_source_path", "env_mix"} else None
    named: str | None = values.get("env", usual)
    return named


def _is_function(place: str | None) -> bool:
    return bool(place) and place != STREAMING


class Condition(msgspec.Struct, frozen=True):
    """`otherwise` completes `FLAG: `: why nothing reads it, and what to do. `is_noted`: a note, no
    refusal, as slime passes over it in silence and its scripts give it."""

    holds: Callable[[RunConfig], bool]
    otherwise: str
    is_noted: bool = False


def has_shipped_estimator(config: RunConfig) -> bool:
    """Whether the flags say what the estimator needs; one of the user's says it itself."""
    return config.advantage_estimator in ALGORITHMS.places


def _policy_loss(config: RunConfig) -> bool:
    return config.loss_type == "policy_loss"


def _has_prox_ratio(config: RunConfig) -> bool:
    return _policy_loss(config) and not config.use_rollout_logprobs


def _has_reward(config: RunConfig) -> bool:
    return config.env in ROW_ENVS and not config.env_args.keys().isdisjoint(("reward", "rm_type"))


def _has_reward_function(config: RunConfig) -> bool:
    """Whether a function of the user's says what episodes earned."""
    return (
        config.custom_reward_post_process_path is not None
        or config.custom_convert_samples_to_train_data_path is not None
    )


def _is_evaluated(config: RunConfig) -> bool:
    """Whether there are evaluation sets that no environment brings."""
    return config.names_eval_sets or config.eval_function_path is not None


def _is_ahead(config: RunConfig) -> bool:
    return config.num_ahead > 0 or config.update_weights_interval > 1


def _switched_on(name: str) -> Condition:
    """Of the flags that a switch has beside it."""
    return Condition(
        lambda config: bool(getattr(config, name)),
        f"no effect without --{name.replace('_', '-')}",
        is_noted=True,
    )


CONDITIONS = {
    "new_run": Condition(
        lambda config: not config.is_continued,
        "--resume names the directory of the run; leave this out",
    ),
    "rows": Condition(
        lambda config: config.prompt_data is not None,
        "this is about the rows of --prompt-data; without it the environment brings its tasks in "
        "an order of its own (see --num-rollout)",
    ),
    "rendered_rows": Condition(
        lambda config: config.prompt_data is not None and config.env != GENERATE,
        "this is about the rows of --prompt-data that no function of "
        "--custom-generate-function-path is given; leave it out",
    ),
    "row_files": Condition(
        lambda config: config.prompt_data is not None or _is_evaluated(config),
        "this is about the rows of --prompt-data and of evaluation sets; leave it out",
    ),
    "row_env": Condition(
        lambda config: not config.has_env or config.env in ROW_ENVS,
        f"only --env {_ROW_ENVS} read this; tell another environment about its rows "
        "with --env-args",
    ),
    "joined": Condition(
        lambda config: config.ray_address is not None,
        "no effect without --ray-address: the run has one node, and ends with it",
        is_noted=True,
    ),
    "external_engines": Condition(
        lambda config: bool(config.rollout_external_engine_addrs),
        "engines that the run starts have a key of the run; this is about those of "
        "--rollout-external-engine-addrs: name them, or leave this out",
    ),
    "started_engines": Condition(
        lambda config: not config.rollout_external_engine_addrs,
        "no effect under --rollout-external-engine-addrs, which names the engines",
        is_noted=True,
    ),
    "disk_pushes": Condition(
        lambda config: config.update_weight_transport == "disk",
        "no effect without --update-weight-transport disk: weights go over a collective",
        is_noted=True,
    ),
    "delta_pushes": Condition(
        lambda config: config.update_weight_mode == "delta",
        "no effect without --update-weight-mode delta: each push is whole",
        is_noted=True,
    ),
    "kept_caches": Condition(
        lambda config: config.keeps_cache,
        "no effect without --kv-across-pushes keep: each push drops what is cached",
        is_noted=True,
    ),
    "colocated": Condition(
        lambda config: config.colocate,
        "no effect without --colocate: learner and engines have devices of their own and keep what "
        "is on them",
        is_noted=True,
    ),
    "engines_by_default": Condition(
        lambda config: (
            not (config.colocate or config.sglang_config)
            and config.rollout_num_gpus in (None, config.rollout_num_gpus_per_engine)
        ),
        "no effect with --rollout-num-gpus, --colocate or --sglang-config, which say how many "
        "engines there are",
    ),
    "generate_env": Condition(
        lambda config: (
            config.env == GENERATE
            or not any(
                map(
                    _is_function,
                    (config.custom_generate_function_path, config.rollout_function_path),
                )
            )
        ),
        "the environment that --env names plays its own episodes: leave out --env, or this flag",
    ),
    "played_samples": Condition(
        lambda config: config.env == GENERATE,
        "it sees samples, and a function of --custom-generate-function-path alone plays such "
        "(docs/hooks.md has one of one turn): name one, or leave this out; an environment changes "
        "its episode itself",
    ),
    "given_back": Condition(
        lambda config: (
            config.buffer_filter_path == _POP_FIRST
            or config.rollout_function_path is not None
            or config.data_source_path is not None
        ),
        "it chooses among groups that a function of --rollout-function-path, or a class of "
        "--data-source-path, has put back; any other run puts none back, since an episode goes on "
        "through weight pushes; leave it out (--dynamic-sampling-filter-path says what is trained)",
    ),
    "own_samples": Condition(
        lambda config: config.rollout_function_path is None,
        "a function of --rollout-function-path has all samples itself, and slime too calls this of "
        "its own rollout function alone: call it at the end of yours, and leave this out",
    ),
    "generate_function": Condition(
        lambda config: config.env == GENERATE,
        "already so: prompts are always rendered, as the model's chat template writes them unless "
        "--chat-format or --chat-template says otherwise",
        is_noted=True,
    ),
    "asked_model": Condition(
        lambda config: config.has_served_teacher or config.env in ROW_ENVS,
        f"only a reward of --env {_ROW_ENVS} (--rm-type), and --use-opd with "
        "--opd-type sglang, ask a model; leave this out, or tell your environment of the address",
    ),
    "turns": Condition(
        lambda config: config.env != "single-turn",
        "an episode of --env single-turn is one turn; leave this out",
    ),
    "own_format": Condition(
        lambda config: config.chat_template is None,
        "--chat-template says how turns are written; give one of the two",
    ),
    "chat_template": Condition(
        lambda config: config.chat_template is not None,
        "only a --chat-template is given anything; give --chat-template own as well",
    ),
    "custom_reward": Condition(
        _has_reward,
        "only a reward of --rm-type or --custom-rm-path, under --env single-turn or tools, may be "
        "a dict; give one, or leave this out",
    ),
    "evaluation_reward": Condition(
        lambda config: _has_reward(config) and _is_evaluated(config),
        "only a reward of --rm-type or --custom-rm-path, of rows of --eval-prompt-data, may be a "
        "dict there; give both, or leave this out",
    ),
    "random": Condition(
        lambda config: config.has_env or config.rollout_shuffle,
        "demonstrations come in the order of their file, and nothing is drawn; give "
        "--rollout-shuffle, or leave this out",
    ),
    "ahead": Condition(
        _is_ahead,
        "generation waits for the learner (train.py, or B or S of 0 and I of 1), so no token is "
        "stale and no turn meets a push; leave this out",
    ),
    "pushed_turns": Condition(
        _is_ahead,
        "no effect where generation waits for the learner: every turn has one version",
        is_noted=True,
    ),
    "cut_short": Condition(
        lambda config: _is_ahead(config) or config.num_charged > config.rollout_batch_size,
        "no effect where generation waits for the learner and no group is left over when an "
        "iteration is full (--over-sampling-batch-size)",
        is_noted=True,
    ),
    "custom_loss": Condition(
        lambda config: config.loss_type == "custom_loss",
        "only --loss-type custom_loss calls it; give both or neither",
    ),
    "policy_loss": Condition(
        _policy_loss,
        "--loss-type custom_loss has a loss of its own, which does not know of this; leave it out",
    ),
    "prox_ratio": Condition(
        _has_prox_ratio,
        "there is no pi_prox / mu under --use-rollout-logprobs, which clips against mu itself, nor "
        "in a custom loss; leave this out",
    ),
    "reduced_tokens": Condition(
        lambda config: _policy_loss(config) and config.loss_length is None,
        "--loss-length divides by a constant, and a custom loss adds up what it likes; give one of "
        "these alone",
    ),
    "tis": Condition(
        lambda config: _has_prox_ratio(config) and config.use_tis,
        "no token is weighted by pi_prox / mu under --no-use-tis, "
        "--use-rollout-logprobs or a custom loss; leave this out",
    ),
    "opsm": Condition(
        lambda config: _policy_loss(config) and config.use_opsm,
        "only --use-opsm reads this; give both or neither",
    ),
    "opd": Condition(
        lambda config: config.use_opd, "only --use-opd reads this; give both or neither"
    ),
    "own_teacher": Condition(
        lambda config: config.use_opd and config.opd_type != "sglang",
        "only --use-opd reads this, with a teacher in the learner's ranks (--opd-type megatron); "
        "give these as well, or leave this out",
    ),
    "counted_tokens": Condition(
        lambda config: config.loss_length is None,
        "--loss-length divides by a constant, and no tokens are counted; give one of the two",
    ),
    "kl_loss": Condition(
        lambda config: config.use_kl_loss,
        "no effect without --use-kl-loss; give --use-kl-loss as well to measure the KL, and to add "
        "it to the loss",
        is_noted=True,
    ),
    "reference": Condition(
        lambda config: config.has_reference or not has_shipped_estimator(config),
        "there is no reference without --use-kl-loss or --kl-coef; give one of them, or leave this "
        "out",
    ),
    "critic": Condition(
        lambda config: config.has_critic or not has_shipped_estimator(config),
        "there is no critic without --advantage-estimator "
        f"{' or '.join(ALGORITHMS.saying('has_critic'))}; give that, or leave this out",
    ),
    "overlong_penalty": Condition(
        lambda config: config.overlong_buffer_length is not None,
        "only --overlong-buffer-length takes something from long episodes; give it as well, or "
        "leave this out",
    ),
    "group_rewards": Condition(
        lambda config: not _has_reward_function(config),
        "--custom-reward-post-process-path, or --custom-convert-samples-to-train-data-path, says "
        "what episodes earned, in place of that; give one of these alone",
    ),
    "group_statistics": Condition(
        lambda config: (
            not config.disable_rewards_normalization and not _has_reward_function(config)
        ),
        "--disable-rewards-normalization takes rewards as they are, and "
        "--custom-reward-post-process-path, or --custom-convert-samples-to-train-data-path, makes "
        "of them what it likes: nothing is divided; give one of these alone",
    ),
    "one_reward_function": Condition(
        lambda config: config.custom_reward_post_process_path is None,
        "--custom-reward-post-process-path says what episodes earned as well; call that function "
        "in this one, and give this flag alone",
    ),
    "decay": Condition(
        lambda config: config.lr_decay_style != "constant",
        "no effect: --lr-decay-style constant never comes down",
        is_noted=True,
    ),
    "warmup": Condition(
        lambda config: config.lr_warmup_iters > 0 or config.lr_warmup_fraction is not None,
        "no effect: there is no warm-up without --lr-warmup-iters or --lr-warmup-fraction",
        is_noted=True,
    ),
    "wsd": Condition(
        lambda config: config.lr_decay_style == "WSD",
        "only --lr-decay-style WSD reads this; give both or neither",
    ),
    "learner": Condition(
        lambda config: not config.plays_only,
        "--debug-rollout-only trains nothing: there is no learner to look at; leave out one of the "
        "two",
    ),
    "profiler": _switched_on("use_pytorch_profiler"),
    "memory_history": _switched_on("record_memory_history"),
    **{name: _switched_on(f"use_{name}") for name in TRACKERS.places},
    "profiled": Condition(
        lambda config: config.use_pytorch_profiler or config.record_memory_history,
        "no effect without --use-pytorch-profiler or --record-memory-history",
        is_noted=True,
    ),
    "eval_interval": Condition(
        lambda config: config.eval_interval is not None,
        "this is about the evaluations of --eval-interval, which is not given; name the iterations "
        "between them (the first and the last evaluation of a run are of one version each without "
        "it)",
    ),
    "evaluations_apart": Condition(
        lambda config: config.evaluates_apart,
        "this is about the engines of --eval-mode apart; give that, or leave this out",
    ),
    "evaluation_sets": Condition(
        # Rows to train on bring none; an environment may.
        lambda config: _is_evaluated(config) or config.prompt_data is None,
        "no effect: there is nothing to evaluate beside the rows of --prompt-data; name other rows "
        "with --eval-prompt-data NAME FILE",
        is_noted=True,
    ),
    "evaluation_rows": Condition(
        lambda config: (
            config.eval_function_path is not None
            or (config.names_eval_sets and config.env in ROW_ENVS)
        ),
        f"only --env {_ROW_ENVS} read this, of the rows of --eval-prompt-data; name "
        "such rows, or leave this out",
    ),
}
