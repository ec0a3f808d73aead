"""What every flag of `RunConfig` does in every mode: accepted, or refused, and what the user reads.

    python -m tests.unit.flag_matrix            print what differs from flag_matrix.tsv
    python -m tests.unit.flag_matrix --write    replace flag_matrix.tsv (each changed line belongs
                                                into the CHANGELOG)

A line is flags, mode, answer and text, with tabs between them. The text of an accepted flag is the
notes that the mode alone does not bring, but for the one that the mode gives the flag too. Nothing
here depends on the host: the device is the CPU.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentrl.config.command_line import Program
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.toml import write_config
from agentrl.errors import AgentRLError
from agentrl.rollout_file import Rollouts, write_rollouts
from agentrl.types import LeaseHeader

__all__ = ["FILE", "MODES", "TOGETHER", "VALUES", "Ground", "lines"]

FILE = Path(__file__).with_name("flag_matrix.tsv")
#: A valid value of each flag other than its default; flags without a value stand for themselves.
VALUES: dict[str, str] = {
    "preset": "search-r1-local",
    "run_dir": "elsewhere",
    "run_id": "mine",
    "resume": "auto --run-dir TMP/runs",
    "num_rollout": "7",
    "num_epoch": "2",
    "max_total_sampled_tokens": "100000",
    "device": "cpu",
    "seed": "7",
    "prompt_data": "ROWS2",
    "data_source_path": "mine.py:Source",
    "input_key": "question",
    "label_key": "answer",
    "metadata_key": "answer",
    "tool_key": "answer",
    "custom_rm_path": "exact",
    "custom_generate_function_path": "mine.py:generate",
    "rollout_sample_hook_path": "mine.py:hook",
    "rm_type": "math",
    "rm_url": "http://127.0.0.1:9000/score",
    "reward_key": "score",
    "rollout_seed": "7",
    "env": "guess",
    "env_args": '{"k":1}',
    "env_mix": "MIX",
    "chat_format": "tags",
    "chat_template": "own",
    "apply_chat_template_kwargs": '{"k":1} --chat-template own',
    "rollout_batch_size": "16",
    "n_samples_per_prompt": "6",
    "min_group_size": "1",
    "rollout_temperature": "0.5",
    "rollout_top_p": "0.9",
    "rollout_top_k": "20",
    "rollout_max_context_len": "256",
    "rollout_max_prompt_len": "100",
    "rollout_max_response_len": "32",
    "rollout_stop": "</answer>",
    "rollout_stop_token_ids": "5",
    "max_turns": "4",
    "max_episode_tokens": "500",
    "max_tool_calls": "2",
    "turn_timeout_s": "7",
    "tool_timeout_s": "5",
    "episode_timeout_s": "700",
    "dynamic_sampling_filter_path": "mine:keep",
    "over_sampling_batch_size": "48",
    "num_agent_workers": "2",
    "max_concurrent_episodes": "600",
    "async_buffer_size": "3",
    "update_weights_interval": "2",
    "max_staleness": "1",
    "staleness_policy": "drop",
    "buffer_disk_limit": "1000000000",
    "keep_trajectories": "0",
    "hf_checkpoint": "MODEL2",
    "model_family": "Qwen3ForCausalLM",
    "save": "TMP/checkpoints",
    "save_interval": "5",
    "save_retain_interval": "20",
    "load": "MODEL2",
    "ref_load": "MODEL2",
    "ref_update_interval": "5",
    "opd_type": "megatron",
    "opd_teacher_load": "MODEL2",
    "critic_load": "MODEL2",
    "only_train_params_name_list": "layers",
    "freeze_params_name_list": "embedding output_layer",
    "save_hf": "TMP/hf",
    "num_steps_per_rollout": "2",
    "max_tokens_per_gpu": "4096",
    "loss_type": "sft_loss",
    "custom_loss_function_path": "mine:loss",
    "prompt_loss_weight": "0.1",
    "advantage_estimator": "mine.py:Mine",
    "algorithm_args": '{"k":1}',
    "custom_reward_post_process_path": "mine:rewards",
    "custom_advantage_function_path": "mine:advantages",
    "custom_pg_loss_reducer_function_path": "mine:reduce",
    "custom_megatron_init_path": "mine:init",
    "custom_megatron_before_log_prob_hook_path": "mine:before_log_prob",
    "custom_megatron_before_train_step_hook_path": "mine:before_step",
    "rollout_data_postprocess_path": "mine:process",
    "rollout_sample_filter_path": "mine:select",
    "custom_rollout_log_function_path": "mine:log",
    "custom_eval_rollout_log_function_path": "mine:log",
    "kl_coef": "0.1",
    "opd_kl_coef": "0.5",
    "gamma": "0.9",
    "lambd": "0.9",
    "value_clip": "0.1",
    "num_critic_only_steps": "5",
    "loss_length": "64",
    "reward_level": "turn",
    "overlong_max_length": "40",
    "overlong_buffer_length": "30",
    "overlong_penalty_factor": "0.5",
    "eps_clip": "0.1",
    "eps_clip_high": "0.3",
    "eps_clip_c": "3",
    "tis_mode": "mask",
    "tis_level": "sequence",
    "tis_clip": "5",
    "tis_clip_low": "0.5",
    "custom_tis_function_path": "mine:weigh",
    "trust_region": "dppo:0.2 veto",
    "opsm_delta": "0.01",
    "entropy_coef": "0.01",
    "kl_loss_coef": "0.1",
    "kl_loss_type": "k2",
    "lr": "1e-5",
    "min_lr": "1e-7",
    "lr_decay_style": "cosine",
    "lr_decay_iters": "30",
    "lr_warmup_iters": "5",
    "lr_warmup_fraction": "0.1",
    "lr_warmup_init": "1e-8",
    "lr_wsd_decay_style": "cosine",
    "lr_wsd_decay_iters": "5",
    "critic_lr": "1e-4",
    "critic_lr_warmup_iters": "5",
    "weight_decay": "0.1",
    "adam_beta1": "0.8",
    "adam_beta2": "0.9",
    "adam_eps": "1e-6",
    "clip_grad": "0.5",
    "ray_address": "10.0.0.1:6379",
    "actor_num_nodes": "2",
    "actor_num_gpus_per_node": "2",
    "rollout_num_gpus": "4",
    "rollout_num_gpus_per_engine": "2",
    "start_timeout_s": "60",
    "env_vars": "NCCL_DEBUG=INFO",
    "train_env_vars": '{"NCCL_DEBUG":"INFO"}',
    "sglang_server_concurrency": "3",
    "rollout_external_engine_addrs": "127.0.0.1:30000",
    "rollout_external_api_key_var": "HOME",
    "update_weight_buffer_size": "1000000",
    "update_weights_timeout": "5",
    "update_weights_fleet_size": "2",
    "kv_across_pushes": "keep",
    "kv_cache_versions": "3",
    "update_weight_transport": "disk",
    "update_weight_mode": "delta",
    "update_weight_disk_dir": "TMP/shared",
    "update_weight_local_checkpoint_dir": "TMP/local",
    "update_weight_delta_encoding": "overwrite",
    "update_weight_delta_checksum": "adler32",
    "custom_update_weight_post_write_path": "mine:show",
    "eval_prompt_data": "held ROWS2",
    "eval_config": "SETS",
    "eval_input_key": "question",
    "eval_label_key": "answer",
    "eval_tool_key": "answer",
    "eval_reward_key": "acc",
    "eval_interval": "5",
    "eval_mode": "pinned",
    "n_samples_per_eval_prompt": "4",
    "eval_temperature": "0.7",
    "eval_top_p": "0.9",
    "eval_top_k": "20",
    "eval_min_p": "0.1",
    "eval_max_response_len": "32",
    "eval_max_context_len": "256",
    "eval_max_prompt_len": "100",
    "wandb_mode": "offline",
    "wandb_project": "agents",
    "wandb_group": "first",
    "wandb_team": "us",
    "wandb_key": "0123456789abcdef",
    "wandb_host": "http://127.0.0.1:8080",
    "wandb_dir": "TMP/wandb",
    "wandb_run_id": "mine",
    "mlflow_tracking_uri": "http://127.0.0.1:5000",
    "mlflow_experiment_name": "agents",
    "mlflow_run_name": "first",
    "swanlab_mode": "offline",
    "swanlab_project": "agents",
    "swanlab_workspace": "us",
    "swanlab_experiment_name": "first",
    "swanlab_key": "0123456789abcdef",
    "swanlab_host": "http://127.0.0.1:8000",
    "save_debug_rollout_data": "TMP/saved/{rollout_id}",
    "dump_details": "TMP/details",
    "load_debug_rollout_data": "ROLLOUTS",
    "profile_target": "train_actor",
    "profile_step_start": "3",
    "profile_step_end": "20",
    "tensorboard_dir": "TMP/traces",
    "memory_snapshot_dir": "TMP/memory",
    "memory_snapshot_num_steps": "5",
}
_X = "TMP/checkpoints"
_ROWS = "--env single-turn --prompt-data ROWS"
#: Flags whose meaning hangs on each other.
TOGETHER = (
    "--colocate --no-offload-train --no-offload-rollout",
    "--colocate --async-buffer-size 0",
    "--use-kl-loss --kl-loss-coef 0.1",
    "--use-kl-loss --kl-loss-type k2",
    "--no-use-tis --tis-clip 5",
    "--no-use-tis --tis-clip-low 0.5",
    "--no-use-tis --tis-level sequence --tis-mode mask",
    "--use-opsm --opsm-delta 0.01",
    "--use-opsm --trust-region opsm:0.01",
    "--trust-region dppo:0.2 --trust-region veto",
    "--use-rollout-logprobs --use-tis",
    "--use-rollout-logprobs --tis-clip 5",
    "--no-use-tis --custom-tis-function-path mine:weigh",
    "--loss-length 64 --calculate-per-token-loss",
    "--use-kl-loss --kl-loss-coef 0.1 --kl-coef 0.1",
    "--use-kl-loss --use-unbiased-kl",
    "--use-kl-loss --ref-update-interval 5",
    "--use-opd",
    "--use-opd --opd-type sglang",
    "--use-opd --opd-type sglang --rm-url http://127.0.0.1:13141",
    "--use-opd --opd-type sglang --rm-url http://127.0.0.1:13141 --opd-teacher-load MODEL2",
    "--use-opd --opd-type megatron --opd-teacher-load MODEL2",
    "--advantage-estimator ppo --critic-load MODEL2 --critic-lr 1e-4 --critic-lr-warmup-iters 5",
    "--advantage-estimator ppo --num-critic-only-steps 9 --num-rollout 8",
    "--advantage-estimator ppo --custom-advantage-function-path mine:advantages",
    "--advantage-estimator ppo --critic-load TMP/none",
    "--only-train-params-name-list layers --freeze-params-name-list embedding",
    "--freeze-params-name-list layers.( embedding",
    "--preset dapo",
    "--preset vcpo",
    "--loss-length 64 --custom-pg-loss-reducer-function-path mine:reduce",
    "--use-rollout-logprobs --scale-lr-by-ess",
    "--overlong-max-length 40 --overlong-buffer-length 30",
    "--overlong-max-length 20 --overlong-buffer-length 30",
    "--num-steps-per-rollout 1 --eps-clip 0.1 --eps-clip-high 0.3",
    "--disable-rewards-normalization --disable-grpo-std-normalization",
    "--disable-rewards-normalization --custom-reward-post-process-path mine:rewards",
    "--loss-type custom_loss --custom-loss-function-path mine:loss",
    "--loss-type custom_loss --custom-loss-function-path mine:loss --eps-clip 0.1",
    "--loss-type custom_loss --custom-loss-function-path mine:loss --tis-clip 5",
    "--loss-type custom_loss --custom-loss-function-path mine:loss --entropy-coef 0.01",
    "--loss-type custom_loss --custom-loss-function-path mine:loss --use-kl-loss",
    "--lr-decay-style cosine --min-lr 1e-7",
    "--lr-decay-style WSD --lr-wsd-decay-iters 5",
    f"--load {_X} --save {_X}",
    f"--load {_X} --save {_X} --ref-load MODEL2",
    "--ref-load TMP/none",
    "--ref-load TMP/none --use-kl-loss --kl-loss-type k3",
    f"{_ROWS} --input-key question",
    f"{_ROWS} --label-key answer",
    f"{_ROWS} --custom-rm-path exact",
    f"{_ROWS} --rm-type dapo --reward-key score",
    f"{_ROWS} --group-rm --custom-rm-path exact",
    f"{_ROWS} --rm-type remote_rm --rm-url http://127.0.0.1:9000/score",
    "--prompt-data ROWS --num-epoch 2",
    "--prompt-data ROWS --rollout-shuffle",
    f"{_ROWS} --eval-temperature 0.7",
    f"{_ROWS} --skip-eval-before-train",
    f"{_ROWS} --eval-prompt-data held ROWS2 --eval-input-key question --eval-label-key answer",
    "--eval-mode pinned --eval-interval 5",
    f"{_ROWS} --eval-config SETS --eval-interval 5",
    f"{_ROWS} --env-mix MIX",
    "--env guess --env-mix MIX --max-tool-calls 3",
    "--n-samples-per-eval-prompt 16 --eval-temperature 0",
    "--rollout-num-gpus 4 --rollout-num-gpus-per-engine 2",
    "--dynamic-sampling-filter-path mine:keep --over-sampling-batch-size 48",
    "--sglang-mem-fraction-static 0.5",
    "--router-policy random",
    "--recompute-granularity full",
    "--load-debug-rollout-data ROLLOUTS --debug-rollout-only",
    "--load-debug-rollout-data ROLLOUTS --debug-train-only",
    "--load-debug-rollout-data TMP/{rollout_id}",
    "--save-debug-rollout-data TMP/saved",
    "--use-pytorch-profiler --profile-target train_actor train_log_probs --profile-step-start 0",
    "--use-pytorch-profiler --profile-step-start 12",
    "--use-pytorch-profiler --num-rollout 10",
    "--use-pytorch-profiler --debug-rollout-only",
    "--record-memory-history --memory-snapshot-dir TMP/memory --memory-snapshot-num-steps 5",
    "--record-memory-history --profile-target train_actor",
    "--record-memory-history --memory-recorder memray",
    "--update-weight-transport disk --update-weight-disk-dir TMP/shared",
    "--update-weight-transport disk --update-weight-mode delta --update-weight-disk-dir TMP/shared",
    "--update-weight-transport disk --update-weight-disk-dir TMP/shared --colocate",
    "--rollout-external-engine-addrs 127.0.0.1:30000 10.0.0.1:30000",
    "--rollout-external-engine-addrs 127.0.0.1:30000 --colocate",
    "--rollout-external-engine-addrs 127.0.0.1:30000 --rollout-num-gpus 4",
    "--rollout-external-engine-addrs 127.0.0.1:30000 --rollout-external-api-key-var HOME",
    "--update-weight-delta-checksum blake3",
    "--global-batch-size 8",
    "--global-batch-size 8 --use-tensorboard --epsclip 0.1",
    "--global-batch-size 8 --eps-clip nonsense --max-turns 0",
)
_ANY = "--hf-checkpoint MODEL --device cpu --run-dir TMP/runs"
_ACTING = f"{_ANY} --env search-r1-local --rollout-max-response-len 64"
_TRAINED = f"{_ACTING} --n-samples-per-prompt 4"
MODES: dict[str, tuple[Program, str]] = {
    "train_async": ("train_async", _TRAINED),
    "train": ("train", _TRAINED),
    "sft": ("train_async", f"{_ANY} --loss-type sft_loss --prompt-data ROWS"),
    "eval": ("train_async", f"{_ACTING} --eval-only"),
    "resume": ("train_async", "--resume RUN --device cpu"),
}


class Ground:
    """Files that the flags name, in `folder`, under the short names that stand in the table."""

    def __init__(self, folder: Path) -> None:
        model = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
        self.names = {
            "MODEL2": folder / "model",
            "MODEL": model,
            "ROLLOUTS": folder / "saved.rollouts",
            "ROWS2": folder / "more.jsonl",
            "ROWS": folder / "rows.jsonl",
            "RUN": folder / "begun",
            "SETS": folder / "sets.toml",
            "MIX": folder / "mix.toml",
            "TMP": folder,
        }
        (folder / "model").symlink_to(model)
        for rows in ("ROWS", "ROWS2"):
            self.names[rows].write_text('{"input": "q", "question": "q", "answer": "a"}\n')
        self.names["SETS"].write_text(
            f'[[datasets]]\nname = "held"\npath = "{self.names["ROWS2"]}"\ntemperature = 0.3\n'
        )
        self.names["MIX"].write_text(
            f'[[parts]]\nname = "asked"\nprompt_data = "{self.names["ROWS2"]}"\nmax_turns = 2\n'
            f'eval = [{{name = "held", path = "{self.names["ROWS2"]}"}}]\n'
        )
        write_rollouts(self.names["ROLLOUTS"], Rollouts(LeaseHeader(1, []), []), lambda _: ())
        (folder / "begun").mkdir()
        begun = parse(self.words(_TRAINED), "train_async").config
        write_config(folder / "begun" / "config.toml", begun)
        (folder / "begun" / "ledger.db").touch()

    def words(self, text: str) -> list[str]:
        """The words of a command line, with the real paths."""
        return [self.real(word) for word in text.split()]

    def shown(self, text: str) -> str:
        """`text` with the short names, on one line."""
        for name, path in self.names.items():
            text = text.replace(str(path), name)
        return json.dumps(text.replace(str(Path.cwd()), "HERE"), ensure_ascii=False)[1:-1]

    def real(self, word: str) -> str:
        """A word with the real path of the short name that it begins with."""
        head, slash, tail = word.partition("/")
        return str(self.names[head]) + slash + tail if head in self.names else word


def given() -> Iterator[str]:
    """Every flag alone, then those that belong together."""
    from agentrl.config.fields import own_fields

    for name, field in own_fields().items():
        if field.kind == "bool":
            yield field.flag
            yield field.flag.replace("--", "--no-", 1)
        else:
            yield f"{field.flag} {VALUES[name]}"
    yield from TOGETHER


def lines() -> Iterator[str]:
    """The table, line by line."""
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder).resolve())
        usual = {mode: _answer(ground, mode, "")[1] for mode in MODES}
        for flags in given():
            for mode in MODES:
                answer, said = _answer(ground, mode, flags)
                if answer == "accepted":
                    said = [n for n in said if n not in usual[mode] and " times: " not in n]
                yield "\t".join((flags, mode, answer, ground.shown("\n".join(said)))).rstrip()


def _answer(ground: Ground, mode: str, flags: str) -> tuple[str, list[str]]:
    program, base = MODES[mode]
    try:
        notes = parse([*ground.words(base), *ground.words(flags)], program).notes
    except AgentRLError as error:
        return "refused", [str(error)]
    return "accepted", notes


def _main() -> int:
    now = list(lines())
    if "--write" in sys.argv:
        FILE.write_text("\n".join(now) + "\n")
        return 0
    kept = FILE.read_text().splitlines()
    changes = [f"- {line}" for line in kept if line not in now]
    changes += [f"+ {line}" for line in now if line not in kept]
    sys.stdout.write("".join(f"{line}\n" for line in sorted(changes, key=lambda line: line[2:])))
    return bool(changes)


if __name__ == "__main__":
    sys.exit(_main())
