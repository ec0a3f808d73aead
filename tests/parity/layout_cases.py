"""The layouts of the learner that are compared with one process: rows, and what is told of them."""

from typing import Any

from agentrl.models import Architecture, Family
from agentrl.models.registry import describe_model, families


def tiny(family: Family) -> Architecture:
    return describe_model(dict(family.tiny), None, source="config.json").architecture


def has_experts(family: Family) -> bool:
    return any(map(tiny(family).has_experts, range(tiny(family).num_layers)))


TENSOR = {"tensor_model_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
PIPELINE = {"pipeline_model_parallel_size": 2}
FIRST = PIPELINE | {"decoder_first_pipeline_num_layers": 2}
LAST = PIPELINE | {"decoder_last_pipeline_num_layers": 2}
EMBEDDING = PIPELINE | {"account_for_embedding_in_pipeline_split": True}
LOSS = PIPELINE | {"account_for_loss_in_pipeline_split": True}
STAGES = PIPELINE | {"pipeline_model_parallel_layout": "E|ttt,L"}
FOUR_STAGES = PIPELINE | {"pipeline_model_parallel_layout": "Et|t|t|L"}
FOUR = {"pipeline_model_parallel_size": 4}
#: Two stages on each rank of the pipeline.
TWICE = {"num_virtual_stages_per_pipeline_rank": 2}
ONE_LAYER = {"num_layers_per_virtual_pipeline_stage": 1}
CONTEXT = {"context_parallel_size": 2}
EXPERT = {"expert_model_parallel_size": 2}
CUT = SEQUENCE | EXPERT | {"expert_tensor_parallel_size": 2}
#: Every rank that shares experts gets the tokens of all.
GATHERED = {"moe_token_dispatcher_type": "allgather"}
EXPERT4 = {"expert_model_parallel_size": 4}
#: Sizes whose product is the ranks of one replica.
SHARED = TENSOR | PIPELINE | CONTEXT
#: Families whose members have experts.
WITH_EXPERTS = [name for name, family in families().items() if has_experts(family)]
#: Those whose experts have biases, so that no tensor ranks cut them up.
WITH_WHOLE_EXPERTS = [name for name in WITH_EXPERTS if tiny(families()[name]).add_bias_linear]
WITH_DELTA_NETS = [name for name, f in families().items() if "linear_num_key_heads" in f.tiny]
DISTRIBUTED = {"use_distributed_optimizer": True}
CORE_AGAIN = {"recompute_granularity": "selective"}
LATENT_AGAIN = CORE_AGAIN | {"recompute_modules": ("mla_up_proj", "layernorm")}
LAYERS_AGAIN = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
EXPERTS_AGAIN = CORE_AGAIN | {"recompute_modules": ("moe",)}
SOME_AGAIN = LAYERS_AGAIN | {"recompute_method": "block"}
OVERLAP = DISTRIBUTED | {"overlap_grad_reduce": True, "overlap_param_gather": True}

#: Case -> ranks, model, Megatron settings.
OF_LAYOUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "dp2": (2, "qwen3", {}),
    "dp2-distributed-tied": (2, "qwen3-tied", DISTRIBUTED),
    "dp2-overlap": (2, "qwen3", OVERLAP),
    "tp2-sequence-tied": (2, "qwen3-tied", SEQUENCE),
    "tp2-prime": (2, "qwen3-prime", TENSOR),
    "tp2-sequence-tied-prime": (
        2,
        "qwen3-tied-prime",
        SEQUENCE | {"make_vocab_size_divisible_by": 32},
    ),
    "dp2-glm4": (2, "glm4", {}),
    "dp2-distributed-deepseek-v3": (2, "deepseek-v3", DISTRIBUTED),
    "dp2-overlap-qwen3-moe": (2, "qwen3-moe", OVERLAP),
    "tp2-sequence-prime": (2, "llama-prime", SEQUENCE | {"make_vocab_size_divisible_by": 32}),
    "tp2-sequence-glm4": (2, "glm4", SEQUENCE),
    "pp2-tied": (2, "qwen3-tied", PIPELINE),
    "cp2": (2, "qwen3", CONTEXT | {"cp_comm_type": "all_gather"}),
    "cp2-window": (2, "mistral-window", CONTEXT),
    "cp2-glm4-moe": (2, "glm4-moe", CONTEXT),
    "cp2-deepseek-v3": (2, "deepseek-v3", CONTEXT),
    "tp2-sequence-pp2-glm4-moe": (4, "glm4-moe", SEQUENCE | PIPELINE),
    "tp2-sequence-cp2-glm4": (4, "glm4", SEQUENCE | CONTEXT),
    "dp2-pp2-deepseek-v3": (4, "deepseek-v3", PIPELINE),
    "tp2-sequence-pp2-tied": (4, "qwen3-tied", SEQUENCE | PIPELINE),
    "tp2-sequence-cp2": (4, "qwen3", SEQUENCE | CONTEXT | DISTRIBUTED),
    "tp2-told": (2, "qwen3-moe-told", SEQUENCE),
    "pp2-told": (2, "qwen3-moe-told", PIPELINE),
    "tp2-ep2-gpt-oss": (2, "gpt-oss", SEQUENCE | EXPERT),
    "cp2-told": (2, "qwen3-moe-told", CONTEXT),
    "ep2-told": (2, "qwen3-moe-told", EXPERT),
    "dp2-pp2": (4, "qwen3", PIPELINE | DISTRIBUTED),
    "ep2-gathered-told": (2, "qwen3-moe-told", EXPERT | GATHERED),
    "tp2-ep2-gathered-glm4-moe": (2, "glm4-moe", SEQUENCE | EXPERT | GATHERED),
}
#: The layouts that every family has to work in. A day plays some of them.
OF_FAMILIES: dict[str, tuple[int, str, dict[str, Any]]] = {
    **{
        f"tp2-{f}": (2, f, SEQUENCE if f in WITH_EXPERTS else TENSOR)
        for f in families()
        if f not in WITH_WHOLE_EXPERTS
    },
    **{f"pp2-{family}": (2, family, PIPELINE) for family in families()},
    **{f"ep2-{family}": (2, family, EXPERT) for family in WITH_EXPERTS},
    **{
        f"tp2-ep2-{family}": (2, family, SEQUENCE | EXPERT)
        for family in WITH_EXPERTS
        if family not in WITH_WHOLE_EXPERTS
    },
    "cp2-gpt-oss": (2, "gpt-oss", CONTEXT),
    **{f"cp2-{family}": (2, family, CONTEXT) for family in WITH_DELTA_NETS},
    "tp2-sequence-cp2-qwen3-next": (4, "qwen3-next-4keys", SEQUENCE | CONTEXT),
    "tp2-sequence-cp2-qwen3-5": (4, "qwen3-5-4keys", SEQUENCE | CONTEXT),
    "cp2-ep2-qwen3-next": (2, "qwen3-next", CONTEXT | EXPERT),
    "cp2-ep2-qwen3-moe": (2, "qwen3-moe", CONTEXT | EXPERT | DISTRIBUTED),
    "tp2-cp2-ep2-qwen3-5-moe": (4, "qwen3-5-moe-4keys", SEQUENCE | CONTEXT | EXPERT),
    "tp2-cp2-ep2-qwen3-next": (4, "qwen3-next-4keys", SEQUENCE | CONTEXT | EXPERT),
    "pp2-cp2-qwen3-5": (4, "qwen3-5", PIPELINE | CONTEXT),
    "pp2-cp2-qwen3-next": (4, "qwen3-next", PIPELINE | CONTEXT | DISTRIBUTED),
    "tp2-dp2-qwen3-moe": (4, "qwen3-moe", SEQUENCE | DISTRIBUTED),
    "tp2-ep4-qwen3-moe": (4, "qwen3-moe", SEQUENCE | EXPERT4 | DISTRIBUTED),
    "tp2-dp2-glm4-moe": (4, "glm4-moe", SEQUENCE),
    "tp2-ep4-deepseek-v3": (4, "deepseek-v3", SEQUENCE | EXPERT4),
    "pp2-ep2-minimax-m2": (4, "minimax-m2", PIPELINE | EXPERT),
    "pp2-ep2-gpt-oss": (4, "gpt-oss", PIPELINE | EXPERT),
    "tp2-ep4-gpt-oss": (4, "gpt-oss", SEQUENCE | EXPERT4 | DISTRIBUTED),
    "pp2-ep2-qwen3-moe": (4, "qwen3-moe", PIPELINE | EXPERT),
    # Experts that are shared out and cut as well.
    "tp2-ep2-etp2-qwen3-moe": (4, "qwen3-moe", CUT | DISTRIBUTED),
    "tp2-ep2-etp2-deepseek-v3": (4, "deepseek-v3", CUT),
    # All tokens to all ranks that share experts.
    "ep2-gathered-deepseek-v3": (2, "deepseek-v3", EXPERT | GATHERED),
    "tp2-ep2-gathered-qwen3-moe": (2, "qwen3-moe", SEQUENCE | EXPERT | GATHERED | DISTRIBUTED),
    "tp2-ep2-etp2-gathered-qwen3-moe": (4, "qwen3-moe", CUT | GATHERED),
    "tp2-ep2-etp2-gathered-deepseek-v3": (4, "deepseek-v3", CUT | GATHERED),
    "cp2-ep2-gathered-qwen3-moe": (2, "qwen3-moe", CONTEXT | EXPERT | GATHERED),
    "cp2-ep2-gathered-deepseek-v3": (2, "deepseek-v3", CONTEXT | EXPERT | GATHERED),
    "pp2-ep2-gathered-minimax-m2": (4, "minimax-m2", PIPELINE | EXPERT | GATHERED),
    "pp2-ep2-gathered-qwen3-moe": (4, "qwen3-moe", PIPELINE | EXPERT | GATHERED),
    # Stages of different size; of 4, the first has the embedding alone.
    "pp2-first-tied": (2, "qwen3-tied-3layers", FIRST),
    "pp2-first-deepseek-v3": (2, "deepseek-v3-3layers", FIRST),
    "pp2-last-qwen3-moe": (2, "qwen3-moe-3layers", LAST),
    "pp2-last-glm4": (2, "glm4-3layers", LAST),
    "pp2-embedding": (2, "qwen3-3layers", EMBEDDING | DISTRIBUTED),
    "pp2-embedding-glm4-moe": (2, "glm4-moe-3layers", EMBEDDING),
    "pp2-loss-tied": (2, "qwen3-tied-3layers", LOSS),
    "pp2-loss-minimax-m2": (2, "minimax-m2-3layers", LOSS),
    "pp2-stages-tied": (2, "qwen3-tied-3layers", STAGES),
    "pp2-stages-deepseek-v3": (2, "deepseek-v3-3layers", STAGES),
    "tp2-pp2-first-glm4-moe": (4, "glm4-moe-3layers", SEQUENCE | FIRST),
    "tp2-pp2-first": (4, "qwen3-3layers", SEQUENCE | FIRST),
    "pp4-embedding-qwen3-moe": (4, "qwen3-moe-3layers", EMBEDDING | FOUR),
    "pp2-stages-ep2-glm4-moe": (4, "glm4-moe-3layers", STAGES | EXPERT),
    "pp4-embedding-tied": (4, "qwen3-tied-3layers", EMBEDDING | FOUR),
    "pp2-stages-ep2-qwen3-moe": (4, "qwen3-moe-3layers", STAGES | EXPERT | DISTRIBUTED),
    # Interleaved stages.
    "pp2-one-layer-tied": (2, "qwen3-tied-4layers", PIPELINE | ONE_LAYER),
    "pp2-one-layer-qwen3-moe": (2, "qwen3-moe-4layers", PIPELINE | ONE_LAYER | DISTRIBUTED),
    "pp2-twice-embedding-tied": (2, "qwen3-tied-3layers", EMBEDDING | TWICE | DISTRIBUTED),
    "pp2-twice-embedding-glm4-moe": (2, "glm4-moe-3layers", EMBEDDING | TWICE),
    "pp2-twice-first-deepseek-v3": (2, "deepseek-v3-6layers", FIRST | TWICE),
    "pp2-twice-first": (2, "qwen3-6layers", FIRST | TWICE),
    "pp2-four-stages-tied": (2, "qwen3-tied-3layers", FOUR_STAGES),
    "pp2-four-stages-minimax-m2": (2, "minimax-m2-3layers", FOUR_STAGES),
    "tp2-pp2-twice-glm4": (4, "glm4-4layers", SEQUENCE | PIPELINE | TWICE),
    "tp2-pp2-twice-qwen3-moe": (4, "qwen3-moe-4layers", SEQUENCE | PIPELINE | TWICE | DISTRIBUTED),
    "pp2-twice-ep2-glm4-moe": (4, "glm4-moe-4layers", PIPELINE | TWICE | EXPERT),
    "pp2-twice-ep2-told": (4, "qwen3-moe-4layers-told", PIPELINE | TWICE | EXPERT),
    "pp2-twice-cp2": (4, "qwen3-4layers", PIPELINE | TWICE | CONTEXT),
    "pp2-twice-cp2-deepseek-v3": (4, "deepseek-v3-4layers", PIPELINE | TWICE | CONTEXT),
    "pp4-twice-tied": (4, "qwen3-tied-8layers", FOUR | TWICE),
    "pp4-twice-qwen3-moe": (4, "qwen3-moe-8layers", FOUR | TWICE),
    "dp2-pp2-twice-overlap": (4, "qwen3-4layers", PIPELINE | TWICE | OVERLAP),
    "dp2-pp2-twice-overlap-qwen3-moe": (4, "qwen3-moe-4layers", PIPELINE | TWICE | OVERLAP),
    # Activations that are computed again, in stages that hold several micro-batches at once.
    "pp2-core-again-tied": (2, "qwen3-tied", PIPELINE | CORE_AGAIN),
    "pp2-core-again-deepseek-v3": (2, "deepseek-v3", PIPELINE | CORE_AGAIN | DISTRIBUTED),
    "pp2-layers-again-qwen3-moe": (2, "qwen3-moe", PIPELINE | LAYERS_AGAIN),
    "pp2-layers-again-deepseek-v3": (2, "deepseek-v3", PIPELINE | LAYERS_AGAIN),
    "pp2-layers-again-told": (2, "qwen3-moe-told", PIPELINE | LAYERS_AGAIN),
    "pp2-experts-again-deepseek-v3": (2, "deepseek-v3", PIPELINE | EXPERTS_AGAIN),
    "pp2-experts-again-told": (2, "qwen3-moe-told", PIPELINE | EXPERTS_AGAIN),
    "pp2-some-again-tied": (2, "qwen3-tied-4layers", PIPELINE | SOME_AGAIN),
    "pp2-some-again-deepseek-v3": (2, "deepseek-v3-4layers", PIPELINE | SOME_AGAIN),
    "pp2-latent-again-deepseek-v3": (2, "deepseek-v3", PIPELINE | LATENT_AGAIN),
    "pp2-latent-again-glm4-moe-lite": (2, "glm4-moe-lite", PIPELINE | LATENT_AGAIN),
    "tp2-latent-again-deepseek-v3": (2, "deepseek-v3", SEQUENCE | LATENT_AGAIN),
    "tp2-latent-again-glm4-moe-lite": (2, "glm4-moe-lite", SEQUENCE | LATENT_AGAIN),
    "cp2-core-again": (2, "qwen3", CONTEXT | CORE_AGAIN),
    "cp2-core-again-qwen3-next": (2, "qwen3-next", CONTEXT | CORE_AGAIN),
    "cp2-layers-again-told": (2, "qwen3-moe-told", CONTEXT | LAYERS_AGAIN),
    "cp2-layers-again-qwen3-5-moe": (2, "qwen3-5-moe", CONTEXT | LAYERS_AGAIN),
    "cp2-latent-again-deepseek-v3": (2, "deepseek-v3", CONTEXT | LATENT_AGAIN),
    "cp2-latent-again-glm4-moe-lite": (2, "glm4-moe-lite", CONTEXT | LATENT_AGAIN),
    "pp2-twice-core-again-tied": (2, "qwen3-tied-4layers", PIPELINE | TWICE | CORE_AGAIN),
    "pp2-twice-core-again-deepseek-v3": (
        2,
        "deepseek-v3-4layers",
        PIPELINE | TWICE | CORE_AGAIN,
    ),
    "pp2-twice-layers-again-qwen3-moe": (
        2,
        "qwen3-moe-4layers",
        PIPELINE | TWICE | LAYERS_AGAIN | DISTRIBUTED,
    ),
    "pp2-twice-layers-again-deepseek-v3": (
        2,
        "deepseek-v3-4layers",
        PIPELINE | TWICE | LAYERS_AGAIN,
    ),
    "pp2-twice-layers-again-told": (
        2,
        "qwen3-moe-4layers-told",
        PIPELINE | TWICE | LAYERS_AGAIN,
    ),
    "pp2-twice-latent-again-deepseek-v3": (
        2,
        "deepseek-v3-4layers",
        PIPELINE | TWICE | LATENT_AGAIN,
    ),
    "pp2-twice-latent-again-glm4-moe-lite": (
        2,
        "glm4-moe-lite-4layers",
        PIPELINE | TWICE | LATENT_AGAIN,
    ),
}
CASES = OF_LAYOUTS | OF_FAMILIES


def family_of(model: str) -> str:
    """The family of a model of a case, whose name may go on with a variant."""
    return max((name for name in families() if model.startswith(name)), key=len)


def layout_of(case: str) -> tuple[int, tuple[tuple[str, Any], ...]]:
    """Ranks and settings that share a model out; who keeps the optimizer's moments is none, nor is
    how context-parallel ranks speak, for which there is one way."""
    ranks, _, megatron = CASES[case]
    others = DISTRIBUTED.items() | {("cp_comm_type", "all_gather")}
    return ranks, tuple(sorted(megatron.items() - others))


def bound(model: str) -> float:
    """How far apart ranks and one process may be. Some gradients of models with delta nets are so
    small that a step of AdamW makes much of their rounding (docs/lab.md)."""
    return 1e-4 if family_of(model) in WITH_DELTA_NETS else 1e-5
