"""What each flag of a run needs beside it to be read, and another value that it may have, with the
user's functions that such values name."""

from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.algorithms.base import Algorithm
from agentrl.cli.hooks.table import HOOKS
from agentrl.config.facts import Mode
from agentrl.config.fields import own_fields
from tests.unit.flag_values import VALUES

ROWS = "--env single-turn --prompt-data ROWS"
_PLAYS = "--env generate --prompt-data ROWS"
_FUNCTION = f"--custom-generate-function-path {__name__}:custom_generate_function_path"
PPO = "--advantage-estimator ppo"
_TEACHER = "--opd-type megatron --opd-teacher-load MODEL2"
OPD = f"--use-opd {_TEACHER}"
_APART = "--rollout-num-gpus 3 --device auto --ray-address 127.0.0.1:1"
DISK = "--update-weight-transport disk --update-weight-disk-dir TMP/shared"
#: What must be there for a flag to be read, by field, in one mode or in all.
BESIDE: dict[str | tuple[str, Mode], str] = {
    "apply_chat_template_kwargs": "--chat-template own",
    ("preset", "supervised"): "--n-samples-per-prompt 1",
    "num_epoch": "--prompt-data ROWS",
    "rollout_shuffle": "--prompt-data ROWS",
    ("rollout_seed", "supervised"): "--rollout-shuffle",
    ("input_key", "policy"): ROWS,
    ("input_key", "eval"): f"{ROWS} --eval-prompt-data held ROWS2",
    ("label_key", "policy"): ROWS,
    ("label_key", "eval"): f"{ROWS} --eval-prompt-data held ROWS2",
    "metadata_key": "--prompt-data ROWS",
    ("metadata_key", "eval"): "--eval-prompt-data held ROWS2",
    "tool_key": "--prompt-data ROWS",
    ("tool_key", "eval"): "--eval-prompt-data held ROWS2",
    ("custom_rm_path", "policy"): ROWS,
    ("custom_generate_function_path", "policy"): _PLAYS,
    "rollout_function_path": _PLAYS,
    "buffer_filter_path": f"{_PLAYS} --rollout-function-path {__name__}:rollout_function_path",
    ("custom_generate_function_path", "eval"): f"{_PLAYS} --eval-prompt-data held ROWS2",
    ("rollout_sample_hook_path", "policy"): f"{_PLAYS} {_FUNCTION}",
    ("rollout_sample_hook_path", "eval"): f"{_PLAYS} {_FUNCTION} --eval-prompt-data held ROWS2",
    ("apply_chat_template", "policy"): f"{_PLAYS} {_FUNCTION}",
    ("apply_chat_template", "eval"): f"{_PLAYS} {_FUNCTION} --eval-prompt-data held ROWS2",
    ("reward_key", "policy"): f"{ROWS} --rm-type dapo",
    ("reward_key", "eval"): f"{ROWS} --rm-type dapo --eval-prompt-data held ROWS2",
    "eval_reward_key": f"{ROWS} --rm-type dapo --reward-key score --eval-prompt-data held ROWS2",
    ("custom_rm_path", "eval"): f"{ROWS} --eval-prompt-data held ROWS2",
    **dict.fromkeys((("rm_type", "policy"), ("rm_url", "policy"), ("group_rm", "policy")), ROWS),
    **dict.fromkeys(
        (("rm_type", "eval"), ("rm_url", "eval"), ("group_rm", "eval")),
        f"{ROWS} --eval-prompt-data held ROWS2",
    ),
    ("calculate_per_token_loss", "supervised"): "--prompt-loss-weight 0.1",
    "custom_loss_function_path": "--loss-type custom_loss",
    "algorithm_args": f"--advantage-estimator {__name__}:Doubled",
    "kl_coef": "--advantage-estimator reinforce_plus_plus --normalize-advantages",
    "gamma": "--advantage-estimator reinforce_plus_plus --normalize-advantages",
    **dict.fromkeys(("lambd", "value_clip", "num_critic_only_steps"), PPO),
    **dict.fromkeys(("critic_load", "critic_lr", "critic_lr_warmup_iters"), PPO),
    "use_unbiased_kl": "--use-kl-loss --kl-loss-coef 0.1",
    "overlong_max_length": "--overlong-buffer-length 10 --overlong-max-length 30",
    "overlong_buffer_length": "--overlong-max-length 40",
    "overlong_penalty_factor": "--overlong-max-length 40 --overlong-buffer-length 30",
    "kl_loss_coef": "--use-kl-loss",
    "kl_loss_type": "--use-kl-loss --kl-loss-coef 0.1",
    "min_lr": "--lr-decay-style cosine",
    "lr_decay_iters": "--lr-decay-style cosine",
    "lr_warmup_init": "--lr-warmup-iters 5",
    "lr_wsd_decay_style": "--lr-decay-style WSD --lr-wsd-decay-iters 5",
    "lr_wsd_decay_iters": "--lr-decay-style WSD",
    "opsm_delta": "--use-opsm",
    **dict.fromkeys(("opd_kl_coef", "opd_teacher_load", "opd_type"), OPD),
    "use_opd": _TEACHER,
    "offload_rollout": "--colocate --async-buffer-size 0 --update-weights-interval 1",
    "eval_mode": "--eval-interval 5",
    "eval_num_engines": "--eval-interval 5 --eval-mode apart",
    "eval_input_key": f"{ROWS} --eval-prompt-data held ROWS2",
    "eval_label_key": f"{ROWS} --eval-prompt-data held ROWS2",
    "eval_tool_key": f"{ROWS} --eval-prompt-data held ROWS2",
    "node_wait_s": "--ray-address 10.0.0.1:6379",
    "place_timeout_s": "--ray-address 10.0.0.1:6379",
    "rollout_num_gpus_per_engine": "--rollout-num-gpus 4",
    # on a cluster, whose devices nobody has asked yet: none of this runs on a CPU
    "prefill_num_servers": f"{_APART} --async-buffer-size 0 --update-weights-interval 1",
    ("prefill_num_servers", "eval"): _APART,
    "rollout_external_api_key_var": "--rollout-external-engine-addrs 127.0.0.1:1",
    "sglang_router_ip": "--sglang-router-port 30000",
    "sglang_router_port": "--sglang-router-ip 127.0.0.1",
    **{
        name: f"--use-{field.fact.needs}"
        for name, field in own_fields().items()
        if f"use_{field.fact.needs}" in own_fields() and field.fact.group == "tracking"
    },
    "disable_wandb_random_suffix": "--use-wandb --wandb-group first",
    "kv_cache_versions": "--kv-across-pushes keep",
    "update_weight_transport": "--update-weight-disk-dir TMP/shared",
    "update_weight_mode": f"{DISK} --update-weight-local-checkpoint-dir TMP/local",
    **dict.fromkeys(
        (
            *("update_weight_disk_keep_files", "update_weight_local_checkpoint_dir"),
            "custom_update_weight_post_write_path",
        ),
        DISK,
    ),
    "update_weight_disk_dir": "--update-weight-transport disk",
    **dict.fromkeys(
        ("update_weight_delta_encoding", "update_weight_delta_checksum"),
        f"{DISK} --update-weight-mode delta --update-weight-local-checkpoint-dir TMP/local",
    ),
    **dict.fromkeys(
        ("profile_target", "profile_step_start", "profile_step_end", "tensorboard_dir"),
        "--use-pytorch-profiler",
    ),
    **dict.fromkeys(
        ("memory_snapshot_dir", "memory_snapshot_num_steps"), "--record-memory-history"
    ),
}
#: Hooks of which any function with the signature does: `__getattr__` makes one.
_HOOKS = {hook.field: hook for hook in HOOKS.values()}
#: Other values than those of the matrix, where these would be refused or change nothing here.
OTHER: dict[str, str] = {
    **{field: f"{__name__}:{field}" for field in _HOOKS},
    "env_args": '{"num_facts":3}',
    "rollout_batch_size": "40",
    "tis_clip": "1.1",
    "opsm_delta": "100",
    "eps_clip_c": "1.2",
    "custom_rm_path": "contains",
    "custom_loss_function_path": f"{__name__}:loss",
    "custom_reward_post_process_path": f"{__name__}:rewards",
    "data_source_path": f"{__name__}:Source",
    "custom_advantage_function_path": f"{__name__}:advantages",
    "custom_tis_function_path": f"{__name__}:weigh",
    "custom_pg_loss_reducer_function_path": f"{__name__}:reducer",
    "advantage_estimator": f"{__name__}:Doubled",
    "algorithm_args": '{"by":3.0}',
}
#: Fields of one valid value, in one mode or in all; and what is the mode itself.
ONE_VALUE: set[str | tuple[str, Mode]] = {
    *("eval_only", "opd_type", ("rollout_top_p", "policy"), ("rollout_top_k", "policy")),
    ("n_samples_per_prompt", "supervised"),
    ("apply_chat_template", "supervised"),  # noted: no other one changes anything
    ("env_mix", "supervised"),  # it takes the place of the rows that every such run here has
    ("prompt_data", "eval"),  # it keeps an environment's own sets from being those of other tasks
}
_ADAM = ("weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "clip_grad")
_RATES = tuple(name for name in own_fields() if name in ("lr", "min_lr") or name.startswith("lr_"))
#: What learner, driver and client look up and have no use for.
READ_AND_UNUSED: dict[Mode, set[str]] = {
    "policy": set(),
    # no sets, no engines, and no turns or rewards of a policy
    "supervised": {
        *("eval_interval", "eval_mode", "eval_num_engines", "skip_eval_before_train"),
        *("partial_rollout", "mask_offpolicy_in_partial_rollout", "kv_across_pushes"),
        *("colocate", "offload_train", "offload_rollout", "log_passrate"),
    },
    # an optimizer that never steps, places where nothing is saved, and no iterations
    "eval": {
        *(*_RATES, *_ADAM, "seed", "loss_type"),
        *("save", "save_hf", "save_interval", "async_save", "save_retain_interval", "ref_load"),
        *("only_train_params_name_list", "freeze_params_name_list", "enable_mtp_training"),
        *("update_weights_interval", "num_steps_per_rollout", "async_buffer_size", "max_staleness"),
        *("eval_interval", "eval_mode", "eval_num_engines"),
        *("skip_eval_before_train", "partial_rollout"),
        *("colocate", "offload_train", "offload_rollout"),
    },
}


def words_of(name: str) -> str:
    """A flag with another value than its default."""
    field = own_fields()[name]
    if field.kind == "bool":
        return field.spelled(not field.default)
    return f"{field.flag} {OTHER.get(name, VALUES.get(name))}"


def __getattr__(field: str) -> Any:
    """A hook of the user's: a function with the first signature of its kind."""
    if field not in _HOOKS:
        raise AttributeError(field)
    hook = _HOOKS[field]
    head = hook.written(hook.its_kind().accepts[0]).replace("[async]", "async")
    made: dict[str, Any] = {}
    exec(f"{head}: ...".replace(" f(", f" {field}("), made)
    return made[field]


class Source:
    """A data source in slime's signature."""

    def __init__(self, args: Any) -> None:
        self.args = args

    def get_samples(self, num_samples: int) -> list[Any]:
        return []


def loss(batch: Any, logprobs_T: Any, entropy_T: Any) -> Any:
    """A loss of the user's."""
    value = -(logprobs_T * batch.columns["weights"] * batch.columns["mask"]).sum()
    return value, {"loss": value.detach()}


def reducer(
    total_lengths: Any, response_lengths: Any, loss_masks: Any, calculate_per_token_loss: Any
) -> Any:
    """A reducer of the user's."""
    return lambda losses: losses.sum()


def weigh(trained: Any) -> Any:
    """A correction of the user's."""
    return trained.mu_K.exp()


def rewards(groups: Any) -> Any:
    """Rewards of the user's."""
    return [group.rewards for group in groups]


def advantages(rows: Any) -> Any:
    """Advantages of the user's."""
    return [row.columns["mu"] for row in rows]


class Doubled(Algorithm):
    """An estimator of the user's."""

    class Args(msgspec.Struct):
        by: float = 2.0

    def values(self, rewards: Sequence[float]) -> Sequence[float]:
        return [self.args.by * reward for reward in rewards]
