"""`RunConfig`: every flag of agentrl's own family: default, bounds and help in one place.

A field `rollout_batch_size` is the flag `--rollout-batch-size` and the key `rollout_batch_size` of
a config file. Flags that slime has keep slime's spelling and default. The other two families live
in `megatron`, `sglang` and `router`: names of those projects, passed through (see `flags.py`).

Only fields that something reads belong here; a test walks the list.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentrl.shipped import CHAT_FORMATS

__all__ = ["RunConfig", "StalenessPolicy"]

# A bound belongs to the number, not to its absence.
Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
AtLeastTwo = Annotated[int, Meta(ge=2)]
NonNegative = Annotated[float, Meta(ge=0)]
OverOne = Annotated[float, Meta(gt=1)]
StalenessPolicy = Literal["mask", "drop"]


def _help(text: str, group: str, **bounds: Any) -> Meta:
    return Meta(description=text, extra_json_schema={"group": group}, **bounds)


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A resolved run. Built by `agentrl.config.resolve`, written to `runs/ID/config.toml`."""

    # ---- run ----
    preset: Annotated[
        str | None, _help("start from this preset; its values lie under your flags", "run")
    ] = None
    run_dir: Annotated[str, _help("folder that holds the run directories", "run")] = "runs"
    run_id: Annotated[
        str | None,
        _help(
            "name of this run, [A-Za-z0-9._-]{1,80} (default: time and a short random id)", "run"
        ),
    ] = None
    resume: Annotated[
        str, _help("continue a run: its directory, or auto (an unfinished one); never", "run")
    ] = "never"
    num_rollout: Annotated[
        Count | None, _help("iterations to train (default: until the tasks end)", "run")
    ] = None
    num_epoch: Annotated[Count | None, _help("times to go through the task source", "run")] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        _help(
            "where the model runs: auto takes GPUs that are there if torch and SGLang can use "
            "them; cpu hides them from the run",
            "run",
        ),
    ] = "auto"
    seed: Annotated[
        int, _help("seed of the learner and of everything that has none of its own", "run", ge=0)
    ] = 1234

    # ---- data and environment ----
    prompt_data: Annotated[
        str | None,
        _help("JSONL file of tasks, one object a line; path@[a:b] takes a slice", "data"),
    ] = None
    input_key: Annotated[
        str, _help("key of the prompt in a row (used by --env single-turn)", "data")
    ] = "input"
    label_key: Annotated[str | None, _help("key of the label in a row", "data")] = None
    custom_rm_path: Annotated[
        str | None,
        _help(
            "reward of --env single-turn and tools: a name that a package brings, pkg.module:fn or "
            "path/to/file.py[:fn], called as fn(text, label, task)",
            "data",
        ),
    ] = None
    rollout_shuffle: Annotated[
        bool, _help("shuffle the tasks of each epoch by --rollout-seed", "data")
    ] = False
    rollout_seed: Annotated[int, _help("seed of task order and episodes", "data", ge=0)] = 42
    env: Annotated[
        str | None,
        _help(
            "environment: a registered name, pkg.module:Class or path/to/file.py[:Class]", "data"
        ),
    ] = None
    env_args: Annotated[dict[str, Any], _help("keyword arguments of the Env as JSON", "data")] = {}
    chat_format: Annotated[
        str,
        _help(
            f"how turns and tool calls are written as tokens: {CHAT_FORMATS}, or one of yours: "
            "pkg.module:Class or path/to/file.py[:Class]",
            "data",
        ),
    ] = "qwen"

    # ---- rollout ----
    rollout_batch_size: Annotated[int, _help("groups in an iteration (N)", "rollout", ge=1)] = 32
    n_samples_per_prompt: Annotated[int, _help("episodes in a group", "rollout", ge=1)] = 1
    min_group_size: Annotated[
        Count | None,
        _help(
            "least episodes with outcome done for a group to be trained (default: all)", "rollout"
        ),
    ] = None
    rollout_temperature: Annotated[
        float,
        _help(
            "sampling temperature of training turns; 0 takes the likeliest token, and the learner "
            "scores it at 1, as the engine does",
            "rollout",
            ge=0,
        ),
    ] = 1.0
    rollout_top_p: Annotated[
        float, _help("nucleus; training refuses less than 1", "rollout", gt=0, le=1)
    ] = 1.0
    rollout_top_k: Annotated[
        int, _help("top-k; training refuses anything but -1", "rollout", ge=-1)
    ] = -1
    rollout_max_context_len: Annotated[
        AtLeastTwo | None,
        _help("tokens of prompt and response together (default: the model's)", "rollout"),
    ] = None
    rollout_max_prompt_len: Annotated[
        Count | None,
        _help("tokens of the first prompt; a group whose prompt has more is filtered", "rollout"),
    ] = None
    rollout_max_response_len: Annotated[
        int, _help("tokens sampled in one turn", "rollout", ge=1)
    ] = 1024
    rollout_stop_token_ids: Annotated[
        list[int], _help("extra token ids that end a turn", "rollout")
    ] = []
    max_turns: Annotated[int, _help("turns in an episode", "rollout", ge=1)] = 16
    max_tool_calls: Annotated[
        Natural | None, _help("tool calls in an episode (default: no limit)", "rollout")
    ] = None
    turn_timeout_s: Annotated[float, _help("deadline of one generation", "rollout", gt=0)] = 600.0
    tool_timeout_s: Annotated[
        float, _help("deadline of a tool call that declares none", "rollout", gt=0)
    ] = 60.0
    episode_timeout_s: Annotated[
        float, _help("deadline of an episode; then it is truncated", "rollout", gt=0)
    ] = 3600.0
    allow_unsafe_sandbox: Annotated[
        bool,
        _help(
            "where bubblewrap is missing, run the model's code with your rights on files", "rollout"
        ),
    ] = False
    dynamic_sampling_filter_path: Annotated[
        str | None,
        _help(
            "function that keeps or drops a judged group, called as fn(rewards, task): a name, "
            "pkg.module:fn or path/to/file.py[:fn]",
            "rollout",
        ),
    ] = None
    over_sampling_batch_size: Annotated[
        Count | None,
        _help(
            "groups kept in the making for the next iteration, so that a filter leaves enough of "
            "them (default: --rollout-batch-size); what is left over waits for the one after",
            "rollout",
        ),
    ] = None
    num_agent_workers: Annotated[int, _help("agent worker processes", "rollout", ge=1)] = 1
    max_concurrent_episodes: Annotated[
        int, _help("episodes one worker holds at once", "rollout", ge=1)
    ] = 1024

    # ---- asynchrony ----
    async_buffer_size: Annotated[
        int, _help("B: iterations that generation may run ahead", "async", ge=0)
    ] = 2
    update_weights_interval: Annotated[
        int, _help("I: iterations between weight pushes", "async", ge=1)
    ] = 1
    max_staleness: Annotated[
        Natural | None,
        _help("S: greatest age of a trained token in iterations (default: B + I - 1)", "async"),
    ] = None
    staleness_policy: Annotated[
        StalenessPolicy,
        _help(
            "a token older than S: mask leaves it out of the loss; drop gives up its whole group "
            "before it is leased, and mints the task again, at most twice",
            "async",
        ),
    ] = "mask"
    partial_rollout: Annotated[
        bool,
        _help(
            "a turn goes on through weight pushes; without, it is sampled again from its prompt, "
            "at most twice, so that it has one version",
            "async",
        ),
    ] = True
    mask_offpolicy_in_partial_rollout: Annotated[
        bool, _help("train only the tokens of a turn that its newest weights sampled", "async")
    ] = False
    buffer_disk_limit: Annotated[
        int, _help("bytes of stored trajectories; minting stops while full", "async", ge=1)
    ] = 64 * 1024**3
    keep_trajectories: Annotated[
        int,
        _help(
            "bytes of trajectories kept for reading after they are trained; the oldest go first; "
            "0 keeps none",
            "async",
            ge=0,
        ),
    ] = 256 * 1024**2

    # ---- model and learner ----
    hf_checkpoint: Annotated[
        str | None,
        _help("Hugging Face model directory: architecture, weights, tokenizer", "learner"),
    ] = None
    save: Annotated[
        str | None,
        _help("folder of the checkpoints (default: runs/ID/recovery)", "learner"),
    ] = None
    save_interval: Annotated[
        int, _help("iterations between checkpoints; the two newest are kept", "learner", ge=1)
    ] = 10
    load: Annotated[
        str | None,
        _help(
            "a run or a folder of checkpoints, whose newest gives weights and optimizer to begin "
            "with, or one checkpoint",
            "learner",
        ),
    ] = None
    save_hf: Annotated[
        str | None,
        _help(
            "where the final weights go in Hugging Face format (default: runs/ID/hf); with "
            "{rollout_id} in it, a model goes there with every checkpoint",
            "learner",
        ),
    ] = None
    num_steps_per_rollout: Annotated[
        int, _help("M: optimizer steps in an iteration", "learner", ge=1)
    ] = 1
    max_tokens_per_gpu: Annotated[
        int,
        _help(
            "tokens of a packed micro-batch for each rank that shares it (context parallelism); a "
            "longer trajectory is a micro-batch of its own",
            "learner",
            ge=1,
        ),
    ] = 8192
    loss_type: Annotated[
        Literal["policy_loss", "sft_loss", "custom_loss"],
        _help(
            "what is learnt: rewarded episodes (policy_loss), or the demonstrated turns of "
            "--prompt-data (sft_loss: --input-key names a list of chat messages)",
            "learner",
        ),
    ] = "policy_loss"
    custom_loss_function_path: Annotated[
        str | None,
        _help(
            "loss of --loss-type custom_loss, called as fn(micro_batch, logprobs_T, entropy_T): "
            "a name, pkg.module:fn or path/to/file.py[:fn]",
            "learner",
        ),
    ] = None
    prompt_loss_weight: Annotated[
        float,
        _help("sft_loss: weight of tokens that the assistant only reads", "learner", ge=0, le=1),
    ] = 0.0
    advantage_estimator: Annotated[
        str,
        _help(
            "how rewards become advantages: grpo, a name that a package brings, or a class of "
            "yours: path/to/file.py[:Class] or pkg.module:Class",
            "learner",
        ),
    ] = "grpo"
    algorithm_args: Annotated[
        dict[str, Any], _help("arguments of that class as JSON, which fill its Args", "learner")
    ] = {}
    disable_grpo_std_normalization: Annotated[
        bool, _help("do not divide by the group's standard deviation (Dr.GRPO)", "learner")
    ] = False
    disable_rewards_normalization: Annotated[
        bool, _help("use rewards as advantages, without group statistics", "learner")
    ] = False
    calculate_per_token_loss: Annotated[
        bool,
        _help(
            "mean over all sampled tokens (default: mean over episodes of the episode's mean)",
            "learner",
        ),
    ] = False
    eps_clip: Annotated[float, _help("lower clip range of the ratio", "learner", ge=0)] = 0.2
    eps_clip_high: Annotated[
        NonNegative | None, _help("upper clip range (default: --eps-clip)", "learner")
    ] = None
    eps_clip_c: Annotated[
        OverOne | None,
        _help("dual-clip constant for negative advantages (default: off)", "learner"),
    ] = None
    use_tis: Annotated[bool, _help("weight tokens by truncated pi_prox / mu", "learner")] = True
    tis_clip: Annotated[float, _help("upper truncation of pi_prox / mu", "learner", gt=0)] = 2.0
    tis_clip_low: Annotated[float, _help("lower truncation of pi_prox / mu", "learner", ge=0)] = 0.0
    entropy_coef: Annotated[float, _help("weight of the entropy bonus", "learner")] = 0.0
    use_kl_loss: Annotated[
        bool, _help("add a KL penalty to the initial weights (loads a reference model)", "learner")
    ] = False
    kl_loss_coef: Annotated[float, _help("weight of the KL penalty", "learner", ge=0)] = 0.0
    kl_loss_type: Annotated[
        Literal["k1", "k2", "k3", "low_var_kl"], _help("estimator of the KL penalty", "learner")
    ] = "k1"
    lr: Annotated[float, _help("learning rate", "learner", ge=0)] = 1e-6
    min_lr: Annotated[float, _help("learning rate at the end of a decay", "learner", ge=0)] = 0.0
    lr_decay_style: Annotated[
        Literal["constant", "linear", "cosine"],
        _help("learning-rate schedule after the warm-up", "learner"),
    ] = "constant"
    lr_warmup_iters: Annotated[int, _help("optimizer steps of linear warm-up", "learner", ge=0)] = 0
    weight_decay: Annotated[float, _help("decoupled weight decay of matrices", "learner", ge=0)] = (
        0.01
    )
    adam_beta1: Annotated[float, _help("Adam beta1", "learner", ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, _help("Adam beta2", "learner", ge=0, lt=1)] = 0.999
    adam_eps: Annotated[float, _help("Adam epsilon", "learner", gt=0)] = 1e-8
    clip_grad: Annotated[float, _help("gradient norm clip; 0 turns it off", "learner", ge=0)] = 1.0

    # ---- placement ----
    ray_address: Annotated[
        str | None, _help("address of a running Ray cluster (default: start one here)", "placement")
    ] = None
    actor_num_nodes: Annotated[int, _help("nodes of the learner", "placement", ge=1)] = 1
    actor_num_gpus_per_node: Annotated[
        int, _help("learner ranks on a node (1 on a host without GPU)", "placement", ge=1)
    ] = 8
    rollout_num_gpus: Annotated[
        Count | None,
        _help("devices of all engines (default: as many as one engine needs)", "placement"),
    ] = None
    rollout_num_gpus_per_engine: Annotated[
        int, _help("devices of one engine", "placement", ge=1)
    ] = 1

    start_timeout_s: Annotated[
        float,
        _help("deadline of the engines' start, and of the first push after it", "placement", gt=0),
    ] = 600.0

    # ---- serving ----
    sglang_server_concurrency: Annotated[
        int, _help("turns in flight on one engine", "serving", ge=1)
    ] = 512
    update_weight_buffer_size: Annotated[
        int, _help("bytes of a weight bucket", "serving", ge=1)
    ] = 512 * 1024**2
    update_weights_timeout: Annotated[
        float, _help("deadline in seconds of each call of a weight push", "serving", gt=0)
    ] = 300.0
    update_weights_fleet_size: Annotated[
        int, _help("engines in one collective", "serving", ge=1)
    ] = 16

    check_weight_update_equal: Annotated[
        bool,
        _help(
            "after each push compare every engine's weights with the learner's (engines of one "
            "rank, on the CPU)",
            "serving",
        ),
    ] = False

    # ---- evaluation ----
    eval_prompt_data: Annotated[
        list[str], _help("evaluation sets: NAME PATH [NAME PATH ...]", "evaluation")
    ] = []
    eval_interval: Annotated[
        Count | None,
        _help(
            "iterations between evaluations beside training (default: before the first iteration "
            "and after the last, with nothing else running)",
            "evaluation",
        ),
    ] = None
    eval_mode: Annotated[
        Literal["beside", "pinned"],
        _help(
            "evaluations of --eval-interval: beside lets pushes go on, so a score may mix "
            "versions; pinned holds pushes back until a set is done",
            "evaluation",
        ),
    ] = "beside"
    eval_only: Annotated[
        bool, _help("evaluate --hf-checkpoint once, train nothing, and end", "evaluation")
    ] = False
    n_samples_per_eval_prompt: Annotated[
        int, _help("episodes of each evaluation task", "evaluation", ge=1)
    ] = 1
    eval_temperature: Annotated[
        float, _help("temperature of evaluation turns; 0 is greedy", "evaluation", ge=0)
    ] = 0.0
    skip_eval_before_train: Annotated[
        bool, _help("no evaluation before the first iteration", "evaluation")
    ] = False

    # ---- passed through ----
    megatron: Annotated[
        dict[str, Any], _help("Megatron-core settings by Megatron's flag names", "megatron")
    ] = {}
    sglang: Annotated[dict[str, Any], _help("SGLang ServerArgs fields", "sglang")] = {}
    router: Annotated[dict[str, Any], _help("sglang-router arguments", "router")] = {}

    @property
    def staleness_bound(self) -> int:
        """S, with its default B + I - 1 filled in."""
        if self.max_staleness is not None:
            return self.max_staleness
        return self.async_buffer_size + self.update_weights_interval - 1

    @property
    def num_ahead(self) -> int:
        """A = min(B, S): iterations that generation may really run ahead."""
        return min(self.async_buffer_size, self.staleness_bound)

    @property
    def masks_off_policy_turns(self) -> bool:
        """Whether only the newest version's tokens of a turn are trained. Without partial rollout
        the one turn of several versions is that which was given up too often."""
        return self.mask_offpolicy_in_partial_rollout or not self.partial_rollout

    @property
    def is_continued(self) -> bool:
        """Whether the run goes on with what an earlier program left in the directory `resume`. An
        `auto` that found no run is a new one."""
        return self.resume not in ("never", "auto")

    @property
    def is_supervised(self) -> bool:
        """Whether the run imitates demonstrations: no engines, no Env, no rewards."""
        return self.loss_type == "sft_loss"

    @property
    def scoring_temperature(self) -> float:
        """What the learner divides logits by: the temperature at which the engine reports
        log-probabilities of what it sampled."""
        return 1.0 if self.is_supervised else self.rollout_temperature or 1.0

    @property
    def num_engines(self) -> int:
        """Engines of the run."""
        if self.is_supervised:
            return 0
        devices = self.rollout_num_gpus or self.rollout_num_gpus_per_engine
        return max(1, devices // self.rollout_num_gpus_per_engine)

    @property
    def num_learner_ranks(self) -> int:
        """Ranks of the learner over all nodes."""
        return self.actor_num_nodes * self.actor_num_gpus_per_node

    @property
    def context_parallel_size(self) -> int:
        """Learner ranks that share each sequence (`--context-parallel-size`)."""
        return int(self.megatron.get("context_parallel_size", 1))

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of a packed micro-batch over all ranks that share it."""
        return self.max_tokens_per_gpu * self.context_parallel_size
