"""Layers of pipeline stages: what Megatron-core builds, and what is refused before it would."""

import itertools
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
LAYERS = "num_layers_per_virtual_pipeline_stage"
NUMBER = "num_virtual_stages_per_pipeline_rank"


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
        (8, 2, {LAYERS: 2}, [2, 2, 2, 2]),
        (8, 2, {LAYERS: 4}, [4, 4]),
        (8, 2, {NUMBER: 1}, [4, 4]),
        (16, 4, {NUMBER: 2}, [2] * 8),
        (7, 2, {NUMBER: 2, EMBEDDING: True}, [1, 2, 2, 2]),
        (10, 2, {LAYERS: 2, EMBEDDING: True, LOSS: True}, [1, 2, 2, 2, 2, 1]),
        (12, 3, {NUMBER: 2, FIRST: 2, LAST: 4}, [1, 3, 2, 1, 3, 2]),
        (6, 2, {LAYOUT: "Et|tt|tt|tL"}, [1, 2, 2, 1]),
    ],
)
def test_stages_have_the_layers_that_megatron_core_builds(
    num_layers: int, ranks: int, flags: dict[str, Any], stages: list[int]
) -> None:
    compat.install()
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    from agentrl.learner.megatron.model import transformer_config

    described = describe_model(
        {**families()["qwen3"].tiny, "num_hidden_layers": num_layers}, None, source="config.json"
    )
    told = settings(ranks, **flags)
    assert layers_of_stages(num_layers, told) == stages
    described.architecture.check(told)
    config = transformer_config(described.architecture, told)
    several = config.virtual_pipeline_model_parallel_size
    assert several in (None, len(stages) // ranks)
    places = [(stage, rank) for stage in range(several or 1) for rank in range(ranks)]
    if layout := config.pipeline_model_parallel_layout:
        layout.validate_layer_layout(num_layers, None)
        parallel_state.set_virtual_pipeline_model_parallel_world_size(several)
        built = [layout.get_num_layers_to_build(vp_stage=s, pp_rank=rank) for s, rank in places]
        parallel_state.set_virtual_pipeline_model_parallel_world_size(None)
    else:
        told_to = [(stage if several else None, rank) for stage, rank in places]
        built = [get_num_layers_to_build(config, *place) for place in told_to]
        first = [get_transformer_layer_offset(config, *place) for place in told_to]
        assert first == [0, *itertools.accumulate(stages)][:-1]
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
        (1, {NUMBER: 2}, "--num-virtual-stages-per-pipeline-rank .*-size 1 is one"),
        (2, {NUMBER: 3}, "ranks with 4, 4 layers cannot have 3 equal stages each"),
        (2, {LAYERS: 3}, "--num-layers-per-virtual-pipeline-stage 3 does not divide the 4 layers"),
        (2, {LAYERS: 2, NUMBER: 2}, "each say how many stages a rank has"),
        (2, {NUMBER: 2, LAYOUT: "Ettttt|ttttL"}, "each say how many stages a rank has"),
        (2, {LAYERS: 2, FIRST: 2}, "wants equal ranks, not --decoder-first.*; give --num-virtual"),
        (2, {NUMBER: 2, FIRST: 3}, "ranks with 3, 5 layers cannot have 2 equal stages each"),
    ],
)
def test_stages_that_cannot_be_are_refused_with_the_numbers(
    ranks: int, flags: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        layers_of_stages(8, settings(ranks, **flags))
