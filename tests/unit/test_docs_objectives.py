"""docs/objectives.md has a row for each estimator, with the flags that it reads."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from agentrl.algorithms.base import TERMS
from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.learner.hooks import BEFORE_TRAIN_STEP, KINDS, LearnerHooks
from agentrl.learner.iteration import train_lease
from agentrl.shipped import ALGORITHMS, TRUST_REGIONS
from tests.parity.golden import Batch, TableBackend, lineage

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "objectives.md").read_text()
ESTIMATORS, _, CORRECTIONS = PAGE.split("## Estimators")[1].partition("## Corrections")
CORRECTIONS = CORRECTIONS.split("\n## ")[0]
ROWS = dict(re.findall(r"^\| `(\w+)` \|(.*\|) *$", ESTIMATORS, re.MULTILINE))


def flags(text: str) -> set[str]:
    return {flag[2:].replace("-", "_") for flag in re.findall(r"--[a-z-]+", text)}


@pytest.mark.parametrize("name", ALGORITHMS.places)
def test_the_row_of_an_estimator_has_the_flags_that_it_reads(name: str) -> None:
    reads = load_algorithm(RunConfig(advantage_estimator=name)).reads
    assert flags(ROWS[name].split("|")[-2]) == reads - TERMS


def test_what_all_read_stands_above_the_table() -> None:
    said = re.search(r"All read (.*?);", PAGE, re.DOTALL)
    assert said is not None
    assert flags(said[1]) == TERMS
    assert set(ROWS) == set(ALGORITHMS.places)


def test_every_trust_region_has_a_row_with_the_bounds_of_its_name() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)([:.0-9]*)` \|", CORRECTIONS, re.MULTILINE)
    assert sorted(name for name, _ in rows) == list(TRUST_REGIONS.places)
    for name, bounds in rows:
        (alone,), (spelled,) = (
            load_algorithm(RunConfig(trust_region=[text])).regions for text in (name, name + bounds)
        )
        assert alone.given == spelled.given


def test_the_estimator_on_the_page_works_and_the_table_names_what_a_class_has(
    tmp_path: Path,
) -> None:
    own = PAGE.split("## An estimator of your own")[1].split("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```$", own, re.DOTALL | re.MULTILINE)
    (tmp_path / "mine.py").write_text(example)
    algorithm = load_algorithm(RunConfig(advantage_estimator=f"{tmp_path}/mine.py:Raft"))
    batch, backend = Batch(1), TableBackend(1)
    before = backend.table.detach().clone()
    train_lease(batch.header, algorithm, backend, lineage(), batch.fetch)
    assert not torch.equal(backend.table, before)
    first_cells = re.findall(r"^\| (`.*?) \|", own, re.MULTILINE)
    for name in re.findall(r"`(?:self\.)?(\w+)", " ".join(first_cells)):
        assert hasattr(algorithm, name), name


def test_the_functions_on_the_page_work(tmp_path: Path) -> None:
    own = PAGE.split("## Parts of your own")[1].split("\n## ")[0]
    ours, slimes = re.findall(r"^```python\n(.*?)^```$", own, re.DOTALL | re.MULTILINE)
    (tmp_path / "mine.py").write_text(ours)
    (tmp_path / "slimes.py").write_text(slimes)
    weighed = []
    for file in ("mine.py:weigh", "slimes.py:icepop"):
        cfg = RunConfig(
            custom_reward_post_process_path=f"{tmp_path}/mine.py:rewards",
            custom_advantage_function_path=f"{tmp_path}/mine.py:advantages",
            custom_tis_function_path=f"{tmp_path}/{file}",
        )
        batch, backend = Batch(1), TableBackend(1)
        train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
        weighed.append(backend.table.detach())
    assert not torch.equal(*weighed)


def test_the_functions_that_the_learner_calls_work(tmp_path: Path) -> None:
    own = PAGE.split("## Functions that the learner calls")[1].split("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```$", own, re.DOTALL | re.MULTILINE)
    (tmp_path / "mine.py").write_text(example)
    cfg = RunConfig(
        rollout_sample_filter_path=f"{tmp_path}/mine.py:select",
        rollout_data_postprocess_path=f"{tmp_path}/mine.py:process",
        custom_megatron_before_train_step_hook_path=f"{tmp_path}/mine.py:before",
        max_staleness=8,
    )
    hooks = LearnerHooks(cfg)
    batch, backend = Batch(1), TableBackend(1)
    before = backend.table.detach().clone()
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch, hooks)
    assert not torch.equal(backend.table, before)
    optimizer = SimpleNamespace(param_groups=[{"lr": 1.0}])
    for step in (0, 1):
        hooks.call(BEFORE_TRAIN_STEP, backend.all_gather, 1, step, [], optimizer, None)
    assert optimizer.param_groups == [{"lr": 0.5}]
    assert {f"`{kind.flag}`" for kind in KINDS.values()} == set(
        re.findall(r"^\| (`--[a-z-]+`) \|", own, re.MULTILINE)
    )


def test_a_formula_cites_its_paper() -> None:
    for row in ROWS.values():
        assert re.search(r"https://arxiv\.org/abs/\d{4}\.\d{5}", row)
