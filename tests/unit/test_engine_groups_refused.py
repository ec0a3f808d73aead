"""Files of engine groups that cannot be, refused by their place."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_engine_groups import APART, MIXED, MODEL, parsed, refused, said

__all__ = ["said"]

ALL_KINDS = ("decode", "prefill", "regular")


def one(group: str, model: str = "name: a") -> str:
    return f"sglang: [{{{model}, server_groups: [{group}]}}]"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1, 2]", "holds a list, not settings by name"),
        ("", "holds no settings"),
        ("sglang: 3", "`sglang` must be a list of models, each with `server_groups`"),
        ("sglang: [{name: a}]\nmore: 1", "unknown key more"),
        ("sglang: [{name: a}]", "sglang[0]: `server_groups` must be a list"),
        (one("{num_gpus: 1}"), "server_groups[0]: worker_type is None; choose from regular"),
        (one("{worker_type: decoder, num_gpus: 1}"), "worker_type is 'decoder'; choose from"),
        (one("{worker_type: encoder, num_gpus: 1}"), "worker_type encoder: models that see"),
        (one("{worker_type: regular}"), "server_groups[0]: num_gpus is missing"),
        (one("{worker_type: regular, num_gpus: 0}"), "num_gpus is 0, and must be a whole number"),
        (one("{worker_type: regular, num_gpus: true}"), "num_gpus is True"),
        (one("[]"), "server_groups[0] is [], and must be a table"),
        (one("{worker_type: regular, num_gpus: 1, size: 2}"), "server_groups[0]: unknown key size"),
        (
            one("{worker_type: regular, num_gpus: 3, num_gpus_per_engine: 2}"),
            "num_gpus 3 is not a multiple of num_gpus_per_engine 2: 1 devices would stay idle",
        ),
        (one("{worker_type: regular, num_gpus: 1}", "num_gpus_per_engine: -1"), "is -1, and must"),
        (one("{worker_type: placeholder, num_gpus: 1}"), "no engine is left to sample"),
        (one("{worker_type: prefill, num_gpus: 1}"), "add one of worker_type decode"),
        (one("{worker_type: decode, num_gpus: 1}"), "add one of worker_type prefill"),
        (
            one(", ".join(f"{{worker_type: {kind}, num_gpus: 1}}" for kind in ALL_KINDS)),
            "stand beside prefill and decode",
        ),
        (
            one("{worker_type: regular, num_gpus: 1}") + "\n",
            "the groups have 1 devices, --rollout-num-gpus 2: make them agree",
        ),
        (
            "sglang: [{server_groups: [{worker_type: regular, num_gpus: 1}]}, {name: ref}]",
            "sglang[1] (ref): engines of a run serve the one model that it trains. A reference is",
        ),
        (
            one("{worker_type: regular, num_gpus: 1}", "update_weights: false"),
            "sglang[0]: update_weights False: engines of a run serve the one model",
        ),
        (
            one("{worker_type: regular, num_gpus: 1}", "model_path: /elsewhere"),
            "model_path /elsewhere is not --hf-checkpoint",
        ),
        (
            "sglang: [{engine_groups: [], server_groups: [{worker_type: regular, num_gpus: 1}]}]",
            "engine_groups is another name of server_groups",
        ),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_its_place(text: str, why: str, said: Any) -> None:
    assert why in refused("--sglang-config", said(text), "--rollout-num-gpus", "2")


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ("{max_runing_requests: 4}", "max_runing_requests is no setting of sglang"),
        ("{max_running_requests: many}", "--sglang-max-running-requests cannot be 'many'"),
        ("{port: 3000}", "agentrl places its engines itself"),
        ("{tp_size: 2}", "tp_size: use num_gpus_per_engine of the group"),
        ("{disaggregation_mode: decode}", "use worker_type of the group"),
        ("{dtype: float16}", "dtype holds for all engines of a run; give --sglang-dtype"),
        ("{model_path: /x}", "use --hf-checkpoint"),
        ("{pp_size: 2}", "every stage of an engine would join a weight push"),
        ("{attn_dp_size: 2}", "is not a multiple of the 2 groups"),
        ("{config: file.yaml}", "a file of SGLang's own flags"),
        ("[4]", "overrides is [4], and must hold SGLang settings by name"),
    ],
)
def test_settings_of_a_group_are_judged_as_flags_are(overrides: str, why: str, said: Any) -> None:
    text = one(f"{{worker_type: regular, num_gpus: 1, overrides: {overrides}}}")
    told = refused("--sglang-config", said(text))
    assert why in told
    assert all(line.startswith("--sglang-config: server_groups[0]") for line in told.splitlines())


def test_both_ways_to_say_which_engines_there_are_are_one_too_many(said: Any) -> None:
    told = refused("--sglang-config", said(MIXED), *APART)
    assert "--sglang-config and --prefill-num-servers: both say which engines" in told


def test_the_model_of_the_run_may_be_named(said: Any) -> None:
    text = one("{worker_type: regular, num_gpus: 1}", f"model_path: {MODEL}")
    assert parsed("--sglang-config", said(text)).num_engines == 1


def test_sglangs_own_file_of_flags_is_not_taken_for_groups(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[sglang]\nconfig = "engines.yaml"\n')
    assert "[sglang] config: a file of SGLang's own flags" in refused("--config", str(path))
