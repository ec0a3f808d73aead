"""A state that several ranks saved goes on as if nothing had happened, in every layout."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystemReader

from agentrl.algorithms.rows import LossFn
from tests.parity.layout_cases import bound
from tests.parity.states import (
    CONTEXT,
    DISTRIBUTED,
    EXPERT,
    LAST,
    ODD,
    OVERLAP,
    PIPELINE,
    SEQUENCE,
    TENSOR,
    TWICE,
    Open,
    Tensors,
    apart,
    are_equal,
    config,
    weights,
    wholes,
)
from tests.slices import of_the_day

#: Name -> model, Megatron settings, script. In order: most load what the one before has saved.
TWO_RANKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "dp2": (ODD, DISTRIBUTED, "step 0, step 1, save dp2, step 2, export dp2-after"),
    "dp2-again": (ODD, DISTRIBUTED, "load dp2, step 2, export dp2-again-after"),
    "behind": (
        ODD,
        DISTRIBUTED,
        "load dp2, replica dp2-replica, copy behind, step 2, write behind, export behind-after",
    ),
    "behind-again": (ODD, DISTRIBUTED, "load behind, step 2, export behind-again-after"),
    "tp2": (ODD, TENSOR, "load dp2, replica tp2-replica, save tp2, fail full"),
    "pp2": (
        ODD,
        PIPELINE | DISTRIBUTED,
        "load tp2, replica pp2-replica, save pp2, step 2, export pp2-after",
    ),
    "cp2": (
        ODD,
        CONTEXT | DISTRIBUTED,
        "load pp2, replica cp2-replica, save cp2, step 2, export cp2-after",
    ),
    "overlap": (ODD, OVERLAP, "load cp2, step 2, save overlap, export overlap-after"),
    "untied-pp2": ("qwen3", PIPELINE, "step 0, save untied-pp2, step 1, export untied-pp2-after"),
    "untied-dp2": (
        "qwen3",
        DISTRIBUTED,
        "load untied-pp2, save untied-dp2, step 1, export untied-dp2-after",
    ),
    "experts-ep2": (
        "qwen3-moe",
        EXPERT | DISTRIBUTED,
        "step 0, save experts-ep2, step 1, export experts-ep2-after",
    ),
    "experts-tp2": (
        "qwen3-moe",
        SEQUENCE,
        "load experts-ep2, save experts-tp2, step 1, export experts-tp2-after",
    ),
    "experts-tp2-ep2": (
        "qwen3-moe",
        SEQUENCE | EXPERT | DISTRIBUTED,
        "load experts-tp2, save experts-tp2-ep2, step 1, export experts-tp2-ep2-after",
    ),
    "uneven-pp2": (
        "qwen3-3layers",
        LAST | DISTRIBUTED,
        "step 0, save uneven-pp2, step 1, export uneven-pp2-after",
    ),
    "uneven-dp2": (
        "qwen3-3layers",
        DISTRIBUTED,
        "load uneven-pp2, save uneven-dp2, step 1, export uneven-dp2-after",
    ),
    "twice-pp2": (
        "qwen3-moe-4layers",
        TWICE | DISTRIBUTED,
        "step 0, save twice-pp2, step 1, export twice-pp2-after",
    ),
    "twice-ep2": (
        "qwen3-moe-4layers",
        EXPERT,
        "load twice-pp2, save twice-ep2, step 1, export twice-ep2-after",
    ),
    "twice-again": (
        "qwen3-moe-4layers",
        TWICE,
        "load twice-ep2, save twice-again, step 1, export twice-again-after",
    ),
    "prime-tp2": ("qwen3-prime", TENSOR, "step 0, save prime-tp2, step 1, export prime-tp2-after"),
    "prime-dp2": (
        "qwen3-prime",
        DISTRIBUTED | {"make_vocab_size_divisible_by": 32},
        "load prime-tp2, save prime-dp2, step 1, export prime-dp2-after",
    ),
}
#: Model whose layers are unlike those above -> layouts; each loads what the one before has saved,
#: and so does one rank. A day plays some of the models.
OTHER_LAYERS: dict[str, dict[str, dict[str, Any]]] = {
    "deepseek-v3": {
        "ep2": EXPERT | DISTRIBUTED,
        "tp2": SEQUENCE,
        "pp2": PIPELINE | DISTRIBUTED,
        "dp2": DISTRIBUTED,
    },
    "glm4-moe-lite": {"tp2-ep2": SEQUENCE | EXPERT, "pp2": PIPELINE, "ep2": EXPERT | DISTRIBUTED},
    "qwen3-next": {"ep2": EXPERT, "tp2": SEQUENCE | DISTRIBUTED, "pp2": PIPELINE},
    "qwen3-5": {"tp2": TENSOR | DISTRIBUTED, "pp2": PIPELINE, "dp2": DISTRIBUTED},
    "gpt-oss": {"ep2": EXPERT | DISTRIBUTED, "tp2-ep2": SEQUENCE | EXPERT, "pp2": PIPELINE},
}
#: So that steps are not made of the rounding of gradients near zero (`test_megatron_ranks.config`).
LARGE_EPS = {"adam_eps": 1e-6}
PLAYED = of_the_day(list(OTHER_LAYERS), 2)
OTHER_STATES = [(model, layout) for model in PLAYED for layout in OTHER_LAYERS[model]]


def first_of(model: str) -> str:
    """The state of the layout that trains it first."""
    return f"{model}-{next(iter(OTHER_LAYERS[model]))}"


def in_a_chain(model: str) -> Iterator[tuple[str, tuple[str, dict[str, Any], str]]]:
    """The layouts of one of `OTHER_LAYERS`, as rows of `TWO_RANKS`."""
    begin = "step 0"
    for layout, megatron in OTHER_LAYERS[model].items():
        name = f"{model}-{layout}"
        yield name, (model, megatron, f"{begin}, save {name}, step 1, export {name}-after")
        begin = f"load {name}"


FOUR_RANKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "tp2-dp2": (
        ODD,
        TENSOR | {"sequence_parallel": True} | DISTRIBUTED,
        "load dp2, replica tp2-dp2-replica, save tp2-dp2, step 2, export tp2-dp2-after",
    )
}


@pytest.fixture(scope="module")
def home(hf_model: Any, run_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all jobs left their states and exports."""
    home = tmp_path_factory.mktemp("states")

    def job(ranks: int, name: str, model: str, megatron: dict[str, Any], text: str) -> Any:
        script = [line.split(" ") for line in text.split(", ")]
        flags = LARGE_EPS if model in OTHER_LAYERS else {}
        return {
            "config": msgspec.to_builtins(config(ranks, megatron, **flags)),
            "model_dir": str(hf_model(model).directory),
            "target": str(home / f"{name}-job"),
            "script": [
                (verb, argument if verb == "step" else str(home / argument))
                for verb, argument in script
            ],
        }

    others = dict(row for model in PLAYED for row in in_a_chain(model))
    for ranks, jobs in ((2, TWO_RANKS | others), (4, FOUR_RANKS)):
        run_ranks(home, ranks, [job(ranks, name, *what) for name, what in jobs.items()])
    return home


def exported(home: Path, name: str) -> Tensors:
    """Weights that all ranks exported alike."""
    first: Tensors = load_file(home / f"{name}-0")
    assert all(are_equal(first, load_file(path)) for path in home.glob(f"{name}-[123]"))
    return first


def test_two_ranks_go_on_bit_equal_in_the_layout_that_saved(home: Path) -> None:
    assert are_equal(exported(home, "dp2-again-after"), exported(home, "dp2-after"))


@pytest.mark.parametrize(
    ("layout", "speakers"),
    [
        ("dp2", [None, None]),
        *((layout, ["0", "0"]) for layout in ("tp2", "pp2", "cp2")),
        ("tp2-dp2", ["0", "0", "2", "2"]),
    ],
)
def test_ranks_of_a_replica_hear_the_first_of_them(
    layout: str, speakers: list[str | None], home: Path
) -> None:
    said = [json.loads((home / f"{layout}-replica-{r}").read_text()) for r in range(len(speakers))]
    assert said == speakers


def test_two_ranks_write_beside_a_step_what_they_had_before_it(home: Path) -> None:
    assert are_equal(wholes(home / "behind"), wholes(home / "dp2"))
    for rank in range(2):
        name = f"rng_{rank:05d}.msgpack"
        assert (home / "behind" / name).read_bytes() == (home / "dp2" / name).read_bytes()
    assert are_equal(exported(home, "behind-again-after"), exported(home, "dp2-after"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("dp2", "tp2"),
        ("tp2", "pp2"),
        ("pp2", "cp2"),
        ("untied-pp2", "untied-dp2"),
        ("experts-ep2", "experts-tp2"),
        ("experts-tp2", "experts-tp2-ep2"),
        ("prime-tp2", "prime-dp2"),
        ("uneven-pp2", "uneven-dp2"),
        ("twice-pp2", "twice-ep2"),
        ("twice-ep2", "twice-again"),
        ("dp2", "tp2-dp2"),
    ],
)
def test_every_layout_holds_the_same_weights_and_moments(one: str, other: str, home: Path) -> None:
    found = wholes(home / one)
    assert are_equal(found, wholes(home / other))
    moments = [tensor for key, tensor in found.items() if key.startswith("optimizer.state.exp_avg")]
    assert len(moments) == 2 * (len(found) - len(moments))
    assert all(tensor.abs().max() > 0 for tensor in moments)


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ("pp2-after", "dp2-after"),
        ("cp2-after", "dp2-after"),
        ("overlap-after", "dp2-after"),
        ("tp2-dp2-after", "dp2-after"),
        ("untied-dp2-after", "untied-pp2-after"),
        ("experts-tp2-after", "experts-ep2-after"),
        ("experts-tp2-ep2-after", "experts-ep2-after"),
        ("uneven-dp2-after", "uneven-pp2-after"),
        ("twice-ep2-after", "twice-pp2-after"),
        ("twice-again-after", "twice-pp2-after"),
    ],
)
def test_every_layout_takes_the_same_next_step(after: str, wanted: str, home: Path) -> None:
    assert apart(exported(home, after), exported(home, wanted)) < 1e-5


@pytest.mark.parametrize("megatron", [{}, DISTRIBUTED], ids=["plain", "distributed"])
def test_one_rank_goes_on_from_two(
    megatron: dict[str, Any], home: Path, opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened(megatron, ODD)
    torch.manual_seed(5)
    wanted = torch.rand(1, generator=torch.Generator().manual_seed(5))
    follow_script(backend, [("load", str(home / "dp2")), ("save", str(tmp_path))])
    assert torch.equal(torch.rand(1), wanted), "generators of another layout were taken over"
    assert are_equal(wholes(tmp_path), wholes(home / "dp2"))
    follow_script(backend, [("step", "2")])
    assert apart(weights(backend), exported(home, "dp2-after")) < 1e-5


@pytest.mark.parametrize("state", ["experts-ep2", "experts-tp2-ep2"])
def test_one_rank_goes_on_with_all_experts_of_two(
    state: str, home: Path, opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened({}, "qwen3-moe")
    follow_script(backend, [("load", str(home / state)), ("save", str(tmp_path)), ("step", "1")])
    assert are_equal(wholes(tmp_path), wholes(home / state))
    assert apart(weights(backend), exported(home, "experts-ep2-after")) < 1e-5


@pytest.mark.parametrize(("model", "layout"), OTHER_STATES)
def test_every_layout_and_one_rank_go_on_with_layers_of_every_kind(
    model: str, layout: str, home: Path, opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    state, first = f"{model}-{layout}", first_of(model)
    held, wanted = wholes(home / first), exported(home, f"{first}-after")
    assert are_equal(wholes(home / state), held)
    assert apart(exported(home, f"{state}-after"), wanted) < bound(model)
    backend = opened({}, model, **LARGE_EPS)
    follow_script(backend, [("load", str(home / state)), ("save", str(tmp_path)), ("step", "1")])
    assert are_equal(wholes(tmp_path), held)
    assert apart(weights(backend), wanted) < bound(model)


def test_what_other_ranks_still_gather_is_waited_for(
    home: Path, opened: Open, follow_script: Any
) -> None:
    backend = opened({}, ODD)
    follow_script(backend, [("load", str(home / "overlap"))])
    assert are_equal(weights(backend), exported(home, "overlap-after"))


@pytest.mark.parametrize("name", ["dp2", "tp2", "pp2", "overlap"])
def test_a_state_is_as_large_as_what_it_holds(name: str, home: Path) -> None:
    """Weights are views of large buffers, of which torch would save all."""
    held = sum(tensor.nbytes for tensor in wholes(home / name).values())
    num_chunks = (home / name / "index.json").read_text().count('"num_bytes"')
    on_disk = sum(path.stat().st_size for path in (home / name).glob("*.distcp"))
    assert held < on_disk < held + 2000 * num_chunks


def test_parameters_are_cut_within_a_row(home: Path) -> None:
    """Else the tests above would not see how torn rows are put together."""
    stored: dict[str, Any] = dict(
        FileSystemReader(home / "dp2").read_metadata().state_dict_metadata
    )
    chunks = [chunk for facts in stored.values() for chunk in facts.chunks]
    assert any(len(chunk.offsets) == 2 and chunk.offsets[1] > 0 for chunk in chunks)


def test_a_disk_that_fails_one_rank_fails_all_of_them(home: Path) -> None:
    said = [(home / f"full-{rank}").read_text() for rank in (0, 1)]
    assert "__1_0.distcp" in said[1]
    assert said[0] == f"learner rank 1: {said[1]}"


def test_closed_backends_do_not_pile_up_threads_of_their_groups(
    opened: Open, packed: Any, pg_loss: LossFn
) -> None:
    """Each wakes up a hundred times a second until the process ends. One group of sixteen or more
    stays, held by nothing of ours."""
    for _ in range(3):
        before = gloo_threads()
        backend = opened({})
        backend.step("policy", [packed([9, 5], 1)], pg_loss)
        opening = gloo_threads() - before
        backend.close()
        assert gloo_threads() - before < opening / 4


def gloo_threads() -> int:
    """Of this process."""
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return sum("gloo" in name for name in names)
