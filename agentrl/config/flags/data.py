"""Tasks, and the environment that plays them."""

from functools import partial
from typing import Annotated, Any

from agentrl.config.facts import (
    ACTS,
    ENGINES,
    GROUPS,
    PLAYED,
    POLICY,
    TASKS,
    TRAINS,
    fixed,
    flag,
    noted,
)
from agentrl.config.flags.run import RunFlags
from agentrl.shipped import CHAT_FORMATS, REWARDS

__all__ = ["DataFlags"]

_flag = partial(flag, group="data", on_resume=TASKS, halves=ENGINES)
_env = partial(_flag, modes=ACTS, on_resume=GROUPS)
_named = partial(_flag, needs="row_files")
_key = partial(_flag, needs="row_env")


class DataFlags(RunFlags, frozen=True, kw_only=True):
    prompt_data: Annotated[
        str | None,
        _flag(
            "Tasks: a JSONL or Parquet file, a folder or pattern of such shards, or a folder of "
            "a Hugging Face dataset; path@[a:b] takes a slice",
            holds="rows",
            starts=True,
        ),
    ] = None
    data_source_path: Annotated[
        str | None,
        _flag(
            "Class that gives the training tasks, in slime's signature: path/to/file.py[:Class] or "
            "pkg.module.Class, made with args, asked get_samples(num_samples) for groups",
            modes=POLICY,
            holds="code",
            starts=True,
        ),
    ] = None
    buffer_filter_path: Annotated[
        str | None,
        _flag(
            "Function that chooses among groups that were given back (add_samples), called as "
            "fn(args[, rollout_id], buffer, num_samples) -> groups of buffer: a name, "
            "pkg.module:fn or path/to/file.py[:fn]; without it they are played first",
            modes=POLICY,
            needs="given_back",
            holds="code",
            on_resume=noted(
                "a data source that keeps no place is asked again for what it gave, and under "
                "another filter it may give other tasks, which ends the run"
            ),
        ),
    ] = None
    input_key: Annotated[
        str, _key("Key of the prompt in a row (used by --env single-turn)", env_arg="input_key")
    ] = "input"
    label_key: Annotated[
        str | None,
        _key(
            "Key of the label in a row; without this flag the key is label",
            modes=ACTS,
            env_arg="label_key",
        ),
    ] = None
    metadata_key: Annotated[
        str, _named("Key of what the environment and the reward find in a task as `metadata`")
    ] = "metadata"
    tool_key: Annotated[
        str,
        _named(
            "Key of the tools of a row, as OpenAI's schemas or their JSON: the prompts of --env "
            "single-turn and tools, and demonstrations, show them"
        ),
    ] = "tools"
    custom_rm_path: Annotated[
        str | None,
        _key(
            "Reward of --env single-turn, tools and generate: a name that a package brings, "
            "pkg.module:fn or path/to/file.py[:fn], called as fn(text, label, task)",
            modes=ACTS,
            on_resume=PLAYED,
            holds="code",
            env_arg="reward",
        ),
    ] = None
    custom_generate_function_path: Annotated[
        str | None,
        _flag(
            "Function that plays an episode, in slime's signature: path/to/file.py[:fn] or "
            "pkg.module.fn, async def fn(args, sample, sampling_params[, evaluation]) -> sample(s)",
            modes=ACTS,
            on_resume=PLAYED,
            needs="generate_env",
            holds="code",
            env_arg="function",
        ),
    ] = None
    rollout_function_path: Annotated[
        str | None,
        _flag(
            "Function that plays many groups at once, in slime's signature: path/to/file.py[:fn] "
            "or pkg.module.fn, [async] def fn(args, rollout_id, data_source, evaluation=False) -> "
            "RolloutFnTrainOutput(samples) or groups of samples",
            modes=POLICY,
            on_resume=PLAYED,
            needs="generate_env",
            holds="code",
            env_arg="rollout_function",
        ),
    ] = None
    rollout_sample_hook_path: Annotated[
        list[str],
        _flag(
            "Functions that see each sample that the function of --custom-generate-function-path "
            "has played, before its reward, called as fn(args, sample[, rollout_id, evaluation]) "
            "-> sample or None: path/to/file.py[:fn] or pkg.module.fn; given again, it adds",
            modes=ACTS,
            on_resume=PLAYED,
            needs="played_samples",
            holds="code",
            collects=1,
        ),
    ] = []
    apply_chat_template: Annotated[
        bool,
        _flag(
            "Give the function of --custom-generate-function-path its prompt as the text that "
            "--chat-format writes; without it, the prompt is as the row has it",
            on_resume=PLAYED,
            needs="generate_function",
        ),
    ] = False
    rm_type: Annotated[
        str | None,
        _key(
            f"Reward that ships, of --env single-turn, tools and generate: {REWARDS}, or "
            "boxed_NAME, given the last \\boxed{...}; `rm_type` of a row's metadata comes before "
            "it, and --custom-rm-path before both",
            modes=ACTS,
            on_resume=PLAYED,
            env_arg="rm_type",
        ),
    ] = None
    rm_url: Annotated[
        str | None,
        _flag(
            "Address of a model that is asked: the reward model of --rm-type remote_rm, to which "
            "JSON with prompt, response and label is posted, a judge, or the SGLang server whose "
            "model is the teacher of --opd-type sglang",
            modes=ACTS,
            needs="asked_model",
            holds="server",
            on_resume=fixed("its rewards, or its teacher's word, come from the model there"),
            env_arg="rm_url",
        ),
    ] = None
    group_rm: Annotated[
        bool,
        _flag(
            "Show --custom-rm-path the answers of a group together: it takes a list of texts, or "
            "of samples, and returns a list of rewards (a reward that ships scores each by "
            "itself)",
            modes=ACTS,
            on_resume=PLAYED,
            needs="row_env",
            env_arg="group_rm",
        ),
    ] = False
    reward_key: Annotated[
        str | None,
        _flag(
            "Key to train on, of a reward that is a dict; its other numbers are counted as "
            "metrics reward.KEY",
            modes=ACTS,
            on_resume=PLAYED,
            needs="custom_reward",
            env_arg="reward_key",
        ),
    ] = None
    rollout_shuffle: Annotated[
        bool, _flag("Shuffle the tasks of each epoch by --rollout-seed", modes=TRAINS, needs="rows")
    ] = False
    rollout_seed: Annotated[int, _flag("Seed of task order and episodes", needs="random", ge=0)] = (
        42
    )
    env: Annotated[
        str | None,
        _env(
            "Environment: a registered name, pkg.module:Class or path/to/file.py[:Class]; without "
            "this flag a run with data has single-turn, and one with "
            "--custom-generate-function-path has generate",
            holds="code",
            starts=True,
        ),
    ] = None
    env_args: Annotated[dict[str, Any], _env("Keyword arguments of the Env as JSON")] = {}
    env_mix: Annotated[
        dict[str, Any],
        _flag(
            "File of several Envs or datasets in one run (TOML or YAML): parts with a weight, and "
            "an Env, rows, reward, temperature, lengths and evaluation sets of their own "
            "(docs/mixtures.md)",
            holds="settings",
            starts=True,
        ),
    ] = {}
    chat_format: Annotated[
        str | None,
        _flag(
            f"How turns and tool calls are written as tokens: {CHAT_FORMATS}, or one of yours: "
            "pkg.module:Class or path/to/file.py[:Class]; without it, the one that the model's "
            "files show, or else the model's own chat template",
            on_resume=PLAYED,
            needs="own_format",
            holds="code",
            was="qwen",
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        _flag(
            "Chat template that says how turns are written, in the place of --chat-format: own, "
            "for that of the model, or a file; one that rewrites what was said is refused with the "
            "difference",
            on_resume=PLAYED,
            holds="file",
        ),
    ] = None
    apply_chat_template_kwargs: Annotated[
        dict[str, Any],
        _flag(
            "Further arguments of the chat template as JSON, for example enable_thinking",
            on_resume=PLAYED,
            needs="chat_template",
        ),
    ] = {}
