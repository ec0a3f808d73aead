"""Rules between fields: each refusal names the flags and the numbers."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig
from agentrl.config.validate import validate
from agentrl.errors import ConfigError

SLIMES = "slime.rollout.filter_hub.dynamic_sampling_filters"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    shape = {
        "architectures": ["Qwen3ForCausalLM"],
        "max_position_embeddings": 1024,
        "vocab_size": 151936,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
    }
    (path / "config.json").write_text(json.dumps(shape))
    return path


@pytest.fixture
def good(model_dir: Path) -> RunConfig:
    return RunConfig(
        env="search-r1-local",
        hf_checkpoint=str(model_dir),
        rollout_batch_size=8,
        n_samples_per_prompt=4,
        rollout_max_response_len=64,
    )


def refusal(good: RunConfig, **changes: Any) -> str:
    config, usual = msgspec.structs.replace(good, **changes), RunConfig()
    said = {n: f.flag for n, f in own_fields().items() if getattr(config, n) != getattr(usual, n)}
    with pytest.raises(ConfigError) as caught:
        validate(config, said)
    return str(caught.value)


def test_a_sound_configuration_passes_without_a_note(good: RunConfig) -> None:
    assert validate(good) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_steps_per_rollout": 3}, "multiple of 3"),
        ({"min_group_size": 5}, "--min-group-size 5 is more than --n-samples-per-prompt 4"),
        ({"update_weights_interval": 4, "max_staleness": 2}, "raise --max-staleness to 3"),
        ({"over_sampling_batch_size": 7}, "is less than --rollout-batch-size 8"),
        (
            {"over_sampling_batch_size": 25},
            "raise --async-buffer-size to 3 and --max-staleness to 3, or make it 24",
        ),
        ({"rollout_top_p": 0.9}, "--rollout-top-p 0.9"),
        ({"rollout_top_k": 50}, "--rollout-top-k 50"),
        ({"turn_timeout_s": 10.0, "episode_timeout_s": 5.0}, "--turn-timeout-s 10"),
        ({"tis_clip_low": 3.0}, "--tis-clip-low 3 is above --tis-clip 2"),
        ({"tis_mode": "mask", "tis_clip": 0.5}, "raise --tis-clip 0.5 above 1"),
        ({"tis_mode": "mask", "tis_clip_low": 1.0}, "lower --tis-clip-low 1 below 1"),
        ({"eps_clip": 1.5}, "--eps-clip 1.5"),
        ({"loss_type": "custom_loss"}, "belong together"),
        ({"custom_loss_function_path": "a:b"}, "only --loss-type custom_loss calls it"),
        ({"prompt_loss_weight": 0.3}, "--prompt-loss-weight: a policy is trained on nothing but"),
        ({"loss_type": "sft_loss"}, "needs --prompt-data"),
        ({"loss_type": "sft_loss", "prompt_data": __file__}, "--n-samples-per-prompt 4"),
        (
            {"loss_type": "sft_loss", "prompt_data": __file__, "n_samples_per_prompt": 1},
            "--env, --rollout-max-response-len: --loss-type sft_loss imitates dialogues",
        ),
        ({"min_lr": 1.0}, "--min-lr 1 is above --lr"),
        ({"rollout_num_gpus": 3, "rollout_num_gpus_per_engine": 2}, "1 devices would stay idle"),
        ({"hf_checkpoint": None}, "--hf-checkpoint is missing"),
        ({"env": None}, "--env and --prompt-data are missing"),
        ({"prompt_data": "nowhere.jsonl@[0:5]"}, "there is no file"),
        ({"num_epoch": 2}, "this is about the rows of --prompt-data"),
        ({"eval_prompt_data": ["a", "b", "c"]}, "has 3 words (a b c); it wants pairs"),
        ({"eval_prompt_data": ["a", __file__, "a", __file__]}, "names a twice"),
        ({"rollout_max_context_len": 2048}, "is more than the model's max_position_embeddings"),
        ({"rollout_max_prompt_len": 1024}, "leaves no room for a turn"),
        (
            {"rollout_max_context_len": 512, "sglang": {"context_length": 256}},
            "--sglang-context-length 256 is less than --rollout-max-context-len 512",
        ),
        (
            {"sglang": {"context_length": "1k"}},
            "--sglang-context-length 1000 is less than the model's max_position_embeddings 1024",
        ),
        (
            {"sglang": {"tp_size": 2}},
            "takes 2 devices, --rollout-num-gpus-per-engine gives an engine 1; use --rollout-num",
        ),
        (
            {"sglang": {"tp_size": 1}, "rollout_num_gpus_per_engine": 2},
            "--sglang-tp-size 1 takes 1 devices",
        ),
        (
            {"sglang": {"tp_size": 2, "pp_size": 2}, "rollout_num_gpus_per_engine": 4},
            "--sglang-pp-size 2: every stage of an engine would join a weight push under the ",
        ),
        (
            {"check_weight_update_equal": True, "rollout_num_gpus_per_engine": 2},
            "each of the 2 ranks of an engine holds a part of it; leave the check out",
        ),
        (
            {"check_weight_update_equal": True, "sglang": {"quantization": "fp8"}},
            "--sglang-quantization fp8 changes it",
        ),
        (
            {"check_weight_update_equal": True, "sglang": {"dtype": "auto"}},
            "--sglang-dtype auto does not say in which type it is kept",
        ),
        ({"sglang": {"nnodes": 2}}, "--sglang-nnodes 2: an engine of more devices than a node has"),
        (
            {"sglang": {"dp_size": 2}, "rollout_num_gpus_per_engine": 2},
            "SGLang pushes no weights to replicas; add --sglang-enable-dp-attention, or make",
        ),
        (
            {"sglang": {"dp_size": 4, "attn_dp_size": 2}, "rollout_num_gpus_per_engine": 4},
            "--sglang-dp-size 4 and --sglang-attn-dp-size 2 are two spellings of one number",
        ),
        (
            {
                "sglang": {"dp_size": 4, "enable_dp_attention": True},
                "rollout_num_gpus_per_engine": 2,
            },
            "is not a multiple of the 4 groups that attend to requests of their own (--sglang-dp",
        ),
        (
            {
                "sglang": {"attn_dp_size": 2},
                "rollout_num_gpus_per_engine": 4,
                "use_rollout_routing_replay": True,
            },
            "--sglang-attn-dp-size 2 and --use-rollout-routing-replay",
        ),
        ({"env_args": {"a": None}}, "env_args.a holds None"),
        (
            {"kv_across_pushes": "keep", "colocate": True},
            "--kv-across-pushes keep and --colocate: engines give up their cache",
        ),
        (
            {"kv_across_pushes": "keep", "use_rollout_routing_replay": True},
            "--kv-across-pushes keep and --use-rollout-routing-replay",
        ),
        (
            {"kv_across_pushes": "keep", "update_weight_transport": "disk"},
            "--kv-across-pushes keep and --update-weight-transport disk: SGLang drops",
        ),
    ],
)
def test_what_cannot_run_is_refused(good: RunConfig, changes: dict[str, Any], said: str) -> None:
    assert said in refusal(good, **changes)


@pytest.mark.parametrize(
    ("sglang", "devices"),
    [
        ({"tp_size": 4}, 4),
        ({"pp_size": 1, "nnodes": 1}, 4),
        ({"dp_size": 8, "enable_dp_attention": True, "enable_dp_lm_head": True}, 8),
        ({"attn_dp_size": 2, "enable_dp_attention": True}, 4),
        ({"dp_size": 1, "enable_dp_attention": True}, 1),
        ({"context_length": "1Ki"}, 1),
        ({"context_length": 4096}, 1),
    ],
)
def test_what_sglang_is_told_may_agree_with_the_run(
    good: RunConfig, sglang: dict[str, Any], devices: int
) -> None:
    validate(msgspec.structs.replace(good, sglang=sglang, rollout_num_gpus_per_engine=devices))


def test_a_directory_without_a_model_is_refused(good: RunConfig, tmp_path: Path) -> None:
    assert "no Hugging Face model directory" in refusal(good, hf_checkpoint=str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    assert "is not a JSON object" in refusal(good, hf_checkpoint=str(tmp_path))


def test_every_combination_of_buffer_and_interval_has_a_bound_that_passes(good: RunConfig) -> None:
    for ahead in range(4):
        for interval in range(1, 5):
            config = msgspec.structs.replace(
                good, async_buffer_size=ahead, update_weights_interval=interval
            )
            validate(config)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_staleness": 1}, "lets generation run 1 iterations ahead, not --async-buffer-size 2"),
        ({"over_sampling_batch_size": 16}, "without --dynamic-sampling-filter-path"),
        (
            {"dynamic_sampling_filter_path": f"{SLIMES}.check_reward_nonzero_std_with_fallback"},
            "agentrl's check_reward_nonzero_std is called in its place",
        ),
        (
            {
                "async_buffer_size": 0,
                "over_sampling_batch_size": 16,
                "dynamic_sampling_filter_path": "a:b",
            },
            "a task that was unfinished begins anew in the next one",
        ),
        (
            {
                "async_buffer_size": 0,
                "over_sampling_batch_size": 16,
                "dynamic_sampling_filter_path": "a:b",
                "partial_rollout": False,
            },
            "a task that was unfinished is given up; to go on with it",
        ),
        (
            {"partial_rollout": False, "mask_offpolicy_in_partial_rollout": True},
            "adds nothing to --no-partial-rollout",
        ),
        (
            {"router": {"balance_abs_threshold": 10}},
            "--router-balance-abs-threshold: no effect under --router-policy manual",
        ),
        (
            {"router": {"policy": "bucket", "cache_threshold": 0.5}},
            "no effect under --router-policy bucket; it is read by cache_aware only",
        ),
        (
            {"sglang": {"load_balance_method": "total_tokens"}},
            "--sglang-load-balance-method total_tokens: no effect: a conversation keeps the group",
        ),
        (
            {"sglang": {"enable_dp_lm_head": True}},
            "--sglang-enable-dp-lm-head: no effect without data-parallel attention",
        ),
        (
            {"device": "cuda", "sglang": {"speculative_algorithm": "EAGLE"}},
            "a weight push reaches the model that samples and not its draft",
        ),
    ],
)
def test_knobs_that_do_less_than_they_seem_to_are_noted(
    good: RunConfig, changes: dict[str, Any], said: str
) -> None:
    (note,) = validate(msgspec.structs.replace(good, **changes))
    assert said in note


@pytest.mark.parametrize(
    "changes",
    [
        {"staleness_policy": "drop"},
        {"partial_rollout": False},
        {"router": {"policy": "cache_aware", "balance_abs_threshold": 10}},
        {"device": "cuda", "sglang": {"speculative_algorithm": "NGRAM"}},
        {"over_sampling_batch_size": 16, "dynamic_sampling_filter_path": "a:b"},
    ],
)
def test_knobs_that_mean_something_pass_without_a_note(
    good: RunConfig, changes: dict[str, Any]
) -> None:
    assert validate(msgspec.structs.replace(good, **changes)) == []


def test_workers_that_cannot_fill_the_engines_are_noted(good: RunConfig) -> None:
    (note,) = validate(msgspec.structs.replace(good, max_concurrent_episodes=8))
    assert "at most 8 episodes" in note
    assert "512 turns" in note


def test_a_staleness_bound_that_shortens_the_buffer_is_noted(good: RunConfig) -> None:
    (note,) = validate(msgspec.structs.replace(good, async_buffer_size=4, max_staleness=1))
    assert "1 iterations ahead, not --async-buffer-size 4" in note


def test_an_episode_longer_than_a_micro_batch_is_remarked_on_with_its_memory(
    good: RunConfig,
) -> None:
    def notes(**changes: Any) -> str:
        return "\n".join(validate(msgspec.structs.replace(good, **changes)))

    assert "--max-tokens-per-gpu" not in notes(max_tokens_per_gpu=1024)
    megatron = {"context_parallel_size": 2}
    assert "--max-tokens-per-gpu" not in notes(max_tokens_per_gpu=512, megatron=megatron)
    said = notes(max_tokens_per_gpu=500, megatron=megatron)
    assert "--max-tokens-per-gpu 500 x --context-parallel-size 2 = 1000 tokens" in said
    # 1024 tokens on 2 ranks, 151,936 words, logits and their gradient of 2 bytes each
    assert "an episode of up to 1024 tokens" in said
    assert "296.8 MiB" in said


def test_a_key_that_this_process_does_not_show_may_be_given_with_a_cluster(good: RunConfig) -> None:
    config = msgspec.structs.replace(good, wandb_key="k3y-0f-nobody", ray_address="10.0.0.1:6379")
    if sys.platform == "linux":
        validate(config)
    else:
        with pytest.raises(ConfigError, match="WANDB_API_KEY") as refused:
            validate(config)
        assert "k3y-0f-nobody" not in str(refused.value)
    validate(msgspec.structs.replace(good, wandb_key="k3y-0f-nobody"))


def test_the_server_of_wandb_is_an_address(good: RunConfig) -> None:
    with pytest.raises(ConfigError, match=r"--wandb-host wandb\.corp\.example: an address is"):
        validate(msgspec.structs.replace(good, wandb_host="wandb.corp.example"))
    validate(msgspec.structs.replace(good, wandb_host="https://wandb.corp.example"))
