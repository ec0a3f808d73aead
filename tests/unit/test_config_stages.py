"""Layers of pipeline stages: what Megatron-core builds, and what is refused before it would."""

from typing import Any

import pytest

from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.config.stages import layers_of_stages
from agentrl.errors import ConfigError
from agentrl.learner.megatron import compat
from agentrl.models.registry import describe_model, families

FIRST, LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
EMBEDDING = "account_for_embedding_in_pipeline_split"
LOSS = "account_for_loss_in_pipeline_split"
LAYOUT = "pipeline_model_parallel_layout"


def settings(ranks: int, **megatron: Any) -> MegatronSettings:
    megatron["pipeline_model_parallel_size"] = ranks
    return MegatronSettings.from_config(RunConfig(actor_num_gpus_per_node=ranks, megatron=megatron))


@pytest.mark.parametrize(
    ("num_layers", "ranks", "flags", "stages"),
    [
        (8, 1, {}, [8]),
        (8, 4, {}, [2, 2, 2, 2]),
        (8, 2, {FIRST: 3}, [3, 5]),
        (8, 2, {LAST: 3}, [5, 3]),
        (8, 2, {FIRST: 2, LAST: 6}, [2, 6]),
        (61, 8, {LAST: 5}, [8, 8, 8, 8, 8, 8, 8, 5]),
        (94, 4, {FIRST: 23, LAST: 23}, [23, 24, 24, 23]),
        (3, 4, {EMBEDDING: True}, [0, 1, 1, 1]),
        (7, 2, {LOSS: True}, [4, 3]),
        (10, 4, {EMBEDDING: True, LOSS: True}, [2, 3, 3, 2]),
        (3, 2, {LAYOUT: "Et|ttL"}, [1, 2]),
        (36, 4, {LAYOUT: "Et*3,(t|t)*2t*27|(t)*2L"}, [4, 2, 28, 2]),
        (4, 4, {LAYOUT: "E|(tt|)*2L"}, [0, 2, 2, 0]),
    ],
)
def test_stages_have_the_layers_that_megatron_core_builds(
    num_layers: int, ranks: int, flags: dict[str, Any], stages: list[int]
) -> None:
    compat.install()
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    from agentrl.learner.megatron.model import transformer_config

    described = describe_model(
        {**families()["qwen3"].tiny, "num_hidden_layers": num_layers}, None, source="config.json"
    )
    told = settings(ranks, **flags)
    assert layers_of_stages(num_layers, told) == stages
    described.architecture.check(told)
    config = transformer_config(described.architecture, told)
    if layout := config.pipeline_model_parallel_layout:
        layout.validate_layer_layout(num_layers, None)
        built = [layout.get_num_layers_to_build(pp_rank=rank) for rank in range(ranks)]
    else:
        built = [get_num_layers_to_build(config, pp_rank=rank) for rank in range(ranks)]
    assert built == stages


@pytest.mark.parametrize(
    ("ranks", "flags", "words"),
    [
        (3, {}, "8 layers cannot be divided by --pipeline-model-parallel-size 3"),
        (1, {FIRST: 3}, "--decoder-first-pipeline-num-layers shares .*-size 1 is one"),
        (1, {LAYOUT: "EttttttttL"}, "--pipeline-model-parallel-layout .* one stage"),
        (2, {FIRST: 3, LOSS: True}, "--decoder-first.* and --account-for-loss.*different ways"),
        (2, {LAYOUT: "Et|tttttttL", LAST: 3}, "--pipeline-model-parallel-layout are different"),
        (2, {FIRST: 3, LAST: 4}, "num-layers 3 and --decoder-last.* 4 leave 1 for the other 0 of"),
        (4, {FIRST: 3}, "8 layers with --decoder-first.* 3 leave 5 for the other 3 of 4 stages"),
        (2, {LAST: 8}, "leave 0 for the other 1 of 2 stages"),
        (2, {EMBEDDING: True}, "8 layers with embedding as one each cannot .* 2; --decoder-first"),
        (2, {LAYOUT: "Et|ttttttt|L"}, "has 3 stages for --pipeline-model-parallel-size 2"),
        (2, {LAYOUT: "Et|ttttttL"}, "has 7 layers and the model 8"),
        (2, {LAYOUT: "E(t)*8|mL"}, r"predicts further tokens \(m\)"),
        (2, {LAYOUT: "(t)*8|EL"}, "must be the embedding"),
        (2, {LAYOUT: "|E(t)*8L"}, "must be the embedding"),
        (2, {LAYOUT: "E(t*8|L"}, "must be the embedding"),
        (2, {LAYOUT: "Ex|L"}, "cannot be 'Ex|L'"),
        (4, {LAYOUT: "E(t)*4||(t)*4|L"}, "stages of 4, 0, 4, 0 layers"),
    ],
)
def test_stages_that_cannot_be_are_refused_with_the_numbers(
    ranks: int, flags: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        layers_of_stages(8, settings(ranks, **flags))
