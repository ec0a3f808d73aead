"""Evaluations: sets, and when they are played. Nothing is trained on them."""

from functools import partial
from typing import Annotated, Literal

from agentrl.config.facts import (
    ACTS,
    ALL,
    ENGINES,
    FREE,
    GROUPS,
    POLICY,
    AtLeastTwo,
    Count,
    Fraction,
    MinusOneOrMore,
    NonNegative,
    Share,
    flag,
)
from agentrl.config.flags.serving import ServingFlags

__all__ = ["EvaluationFlags"]

_flag = partial(
    flag, group="evaluation", on_resume=FREE, modes=POLICY, halves=ENGINES, reaches_weights=False
)
_played = partial(_flag, modes=ACTS, needs="evaluation_sets")
_key = partial(_flag, modes=ACTS, needs="evaluation_rows")


class EvaluationFlags(ServingFlags, frozen=True, kw_only=True):
    eval_prompt_data: Annotated[
        list[str],
        _flag(
            "Evaluation sets: NAME PATH [NAME PATH ...]; given again, it adds to them",
            modes=ACTS,
            collects=2,
        ),
    ] = []
    eval_config: Annotated[
        str | None,
        _flag(
            "File of evaluation sets that are played each in its own way (YAML or TOML, in slime's "
            "form): Env, sampling, lengths, episodes of a task, reward",
            modes=ACTS,
            holds="file",
        ),
    ] = None
    eval_function_path: Annotated[
        str | None,
        _flag(
            "Function that plays all evaluation sets in one call, in slime's signature: "
            "path/to/file.py[:fn] or pkg.module.fn, [async] def fn(args, rollout_id, data_source, "
            "evaluation=True) -> RolloutFnEvalOutput(data) or {SET: {rewards, truncated, samples}}",
            modes=ACTS,
            holds="code",
        ),
    ] = None
    eval_input_key: Annotated[
        str | None,
        _key("Key of the prompt in rows of --eval-prompt-data (default: --input-key)"),
    ] = None
    eval_label_key: Annotated[
        str | None,
        _key("Key of the label in rows of --eval-prompt-data (default: --label-key)"),
    ] = None
    eval_tool_key: Annotated[
        str | None,
        _key("Key of the tools in rows of --eval-prompt-data (default: --tool-key)"),
    ] = None
    eval_reward_key: Annotated[
        str | None,
        _flag(
            "Key that is the score of an evaluation, of a reward that is a dict (default: "
            "--reward-key)",
            modes=ACTS,
            needs="evaluation_reward",
            env_arg="eval_reward_key",
        ),
    ] = None
    eval_interval: Annotated[
        Count | None,
        _flag(
            "Iterations between evaluations beside training (default: before the first iteration "
            "and after the last, with nothing else running)"
        ),
    ] = None
    eval_mode: Annotated[
        Literal["beside", "pinned", "apart"],
        _flag(
            "How evaluations of --eval-interval meet weight pushes: beside lets pushes go on, so "
            "a score may mix versions; pinned holds pushes back until all sets are done; apart "
            "plays all evaluations on engines of their own, which load the weights from a folder",
            needs="eval_interval",
        ),
    ] = "beside"
    eval_num_engines: Annotated[
        Count,
        _flag(
            "Engines of --eval-mode apart, each of --rollout-num-gpus-per-engine devices",
            needs="evaluations_apart",
        ),
    ] = 1
    eval_only: Annotated[
        bool,
        _flag(
            "Evaluate --hf-checkpoint once, train nothing, and end",
            modes=ALL,
            on_resume=GROUPS,
            halves=frozenset(),
        ),
    ] = False
    n_samples_per_eval_prompt: Annotated[int, _played("Episodes of each evaluation task", ge=1)] = 1
    eval_temperature: Annotated[
        NonNegative | None,
        _played(
            "Temperature of evaluation turns; 0 is greedy (default: --rollout-temperature)",
            was=0.0,
        ),
    ] = None
    eval_top_p: Annotated[
        Share | None, _played("Nucleus of evaluation turns (default: --rollout-top-p)")
    ] = None
    eval_top_k: Annotated[
        MinusOneOrMore | None,
        _played("Top-k of evaluation turns; -1 is all (default: --rollout-top-k)"),
    ] = None
    eval_min_p: Annotated[
        Fraction,
        _played(
            "Share of the likeliest token's probability that a token of an evaluation needs to be "
            "drawn (training draws from all tokens)"
        ),
    ] = 0.0
    eval_max_response_len: Annotated[
        Count | None,
        _played(
            "Tokens sampled in one turn of an evaluation (default: --rollout-max-response-len)"
        ),
    ] = None
    eval_max_context_len: Annotated[
        AtLeastTwo | None,
        _played(
            "Tokens of prompt and response together in an evaluation "
            "(default: --rollout-max-context-len)"
        ),
    ] = None
    eval_max_prompt_len: Annotated[
        Count | None,
        _played(
            "Tokens of the first prompt in an evaluation; a task whose prompt has more counts as "
            "failed and has no score (default: what the context holds)"
        ),
    ] = None
    skip_eval_before_train: Annotated[
        bool, _flag("Skip the evaluation before the first iteration", needs="evaluation_sets")
    ] = False
