"""The complete example of slime's configuration guide: all flags of a GRPO job at once."""

import json
from pathlib import Path

from agentrl.config.megatron import MegatronSettings
from agentrl.config.resolve import parse
from tests.unit.played_episodes import MODEL


def test_the_complete_example_of_the_guide_is_one_run(tmp_path: Path) -> None:
    """As the guide has it, but for what its folders and files are called."""
    guide = """
        --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-num-gpus-per-engine 2 --colocate
        --hf-checkpoint MODEL --ref-load MODEL --load new --save new --save-interval 20
        --prompt-data rows.jsonl --input-key prompt --label-key label --apply-chat-template
        --rollout-shuffle --rm-type deepscaler --num-rollout 3000 --rollout-batch-size 32
        --n-samples-per-prompt 8 --rollout-max-response-len 8192 --rollout-temperature 0.8
        --global-batch-size 256 --balance-data --eval-interval 20 --eval-prompt-data aime rows.jsonl
        --n-samples-per-eval-prompt 16 --eval-max-response-len 16384 --eval-top-p 0.7
        --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1
        --context-parallel-size 1 --recompute-granularity full --recompute-method uniform
        --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 9216
        --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl
        --entropy-coef 0.00 --eps-clip 0.2 --eps-clip-high 0.28 --optimizer adam --lr 1e-6
        --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98
        --attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32
        --attention-softmax-in-fp32 --attention-backend flash --sglang-mem-fraction-static 0.7
    """
    row = {"prompt": "2+2?", "label": "4"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    words = guide.replace("rows.jsonl", f"{tmp_path}/rows.jsonl").replace("new", f"{tmp_path}/new")
    config = parse(words.replace("MODEL", str(MODEL)).split(), "train").config
    assert (config.num_learner_ranks, config.num_engines, config.colocate) == (8, 4, True)
    assert (config.rollout_batch_size, config.n_samples_per_prompt) == (32, 8)
    assert (config.num_steps_per_rollout, config.max_staleness) == (1, 0)
    assert (config.eps_clip, config.eps_clip_high, config.use_kl_loss) == (0.2, 0.28, True)
    assert (config.weight_decay, config.adam_beta2, config.lr) == (0.1, 0.98, 1e-6)
    settings = MegatronSettings.from_config(config)
    assert (settings.tensor_model_parallel_size, settings.sequence_parallel) == (2, True)
    assert settings.recompute_granularity == "full"
    assert config.sglang == {"mem_fraction_static": 0.7}
