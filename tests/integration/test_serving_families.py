"""For each family: a real engine with agentrl's CPU attention takes a push of the learner's
weights and says what transformers says; and a run of one iteration trains it."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.models.registry import families
from benchmarks.families import engine_beside, iterate, learned, make_model, member
from tests.slices import of_the_day

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

#: Rotary positions that are scaled; prompts are longer than the first context.
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64}
FAMILIES = list(families())
#: Members to play: their families, and what their config.json says beside `tiny`.
MEMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "moonlight": ("deepseek-v3", {"q_lora_rank": None, "rope_scaling": None}),
    "llama-scaled": ("llama", {"rope_scaling": LLAMA3}),
    "qwen3-scaled": ("qwen3", {"rope_scaling": YARN}),
}
#: Families whose engines may have data-parallel attention. Those that see have the same text model,
#: and SGLang cannot share out their small eyes over two ranks of a CPU.
SPLIT = [
    name
    for name, family in families().items()
    if family.engine_ranks and "vision_config" not in family.tiny
]


@pytest.mark.anyio
@pytest.mark.parametrize("name", of_the_day(list(MEMBERS), 4))
async def test_16_greedy_requests_after_a_push_equal_transformers(
    name: str, tmp_path: Path
) -> None:
    family, changes = MEMBERS[name]
    make_model(member(family, changes), tmp_path / "first", seed=0)
    model = make_model(member(family, changes), tmp_path / "learned", seed=1)
    tensors = learned(tmp_path / "learned")
    difference, others = await engine_beside(family, model, tmp_path / "first", tensors)
    assert others == 0
    assert difference < 1e-4


@pytest.mark.anyio
@pytest.mark.parametrize("family", of_the_day(SPLIT, 1))
async def test_groups_of_ranks_that_attend_for_themselves_answer_as_transformers(
    family: str, tmp_path: Path
) -> None:
    make_model(member(family), tmp_path / "first", seed=0)
    model = make_model(member(family), tmp_path / "learned", seed=1)
    tensors = learned(tmp_path / "learned")
    difference, others = await engine_beside(family, model, tmp_path / "first", tensors, groups=2)
    assert others == 0
    assert difference < 1e-4


@pytest.mark.parametrize("family", of_the_day(FAMILIES, 2))
def test_a_run_of_one_iteration_trains_pushes_and_saves_it(family: str, tmp_path: Path) -> None:
    assert iterate(family, tmp_path) < 1e-4


def test_a_run_whose_engine_has_groups_of_ranks_trains_what_they_sampled(tmp_path: Path) -> None:
    """With the flags that slime's scripts of DeepSeek-R1 and Kimi K2 pass, and through the router,
    which has to pass on what group a conversation has."""
    flags = ["--rollout-num-gpus", "2", "--rollout-num-gpus-per-engine", "2"]
    flags += ["--sglang-enable-dp-attention", "--sglang-dp-size", "2"]
    flags += ["--sglang-enable-dp-lm-head", "--sglang-moe-dense-tp-size", "1"]
    flags += ["--sglang-ep-size", "2"]
    assert iterate("deepseek-v3", tmp_path, *flags) < 1e-4
