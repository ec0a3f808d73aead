"""Engines that somebody else started: how a command line names them, and which servers a run
joins."""

import json
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from agentrl.cli.external_engines import ask_engines, check_external_engines
from agentrl.cluster.layout import RunDir
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.placement import Cluster as Nodes
from agentrl.cluster.roles.worker import client_settings
from agentrl.cluster.slots import Supply, plan_slots
from agentrl.config.external_engines import about_external_engines, engine_urls
from agentrl.config.passthrough import table
from agentrl.config.plan import describe
from agentrl.config.presets import DEFAULT
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.serving.external import _COLLECTIVE, _OURS, _SIZES
from agentrl.serving.key import read_key
from tests.unit.default_lines import refused
from tests.unit.external_servers import ADDRS, MODEL, MODEL_INFO, OneNode, joins, servers
from tests.unit.scripted_engines import Cluster, cluster

__all__ = ["cluster", "servers"]

KEY = "--rollout-external-api-key-var"


def parsed(*flags: str) -> RunConfig:
    return parse(["--preset", DEFAULT, "--device", "cpu", *flags], "train_async").config


def told(config: RunConfig) -> str:
    """What is refused of the servers, before anything is started."""
    with pytest.raises(ConfigError) as caught:
        check_external_engines(config)
    return str(caught.value)


# ---- flags -----------------------------------------------------------------------------------


def test_servers_are_the_engines_of_the_run_and_it_starts_none(tmp_path: Path) -> None:
    config = parsed(ADDRS, "127.0.0.1:30000", "http://localhost:30001/")
    assert engine_urls(config) == ["http://127.0.0.1:30000", "http://localhost:30001"]
    run = RunDir(config)
    run.private = tmp_path
    spec, orders = plan_processes(config, run, cast(Nodes, OneNode()), {}, "cpu")
    assert [(e.name, e.url) for e in spec.engines] == [
        ("engine-0", "http://127.0.0.1:30000"),
        ("engine-1", "http://localhost:30001"),
    ]
    assert {order.kind for order in orders} == {"learner", "buffer", "worker", "router"}
    assert client_settings(spec)["num_permits"] == 2 * config.sglang_server_concurrency
    placed = {
        name for slot in plan_slots(config, Supply("GPU", (8,)), {}) for name in slot.processes
    }
    assert "router" in placed
    assert not any(name.startswith("engine") for name in placed)


def test_a_dry_run_names_them_and_counts_no_devices_for_them() -> None:
    config = parsed(ADDRS, "127.0.0.1:30000", "127.0.0.1:30001")
    page = describe(config.__replace__(device="cuda"))
    assert "http://127.0.0.1:30001, which somebody else started and stops" in page
    assert "devices   1 GPUs of this host" in page


@pytest.mark.parametrize(
    ("addresses", "said"),
    [
        (["127.0.0.1"], "write HOST:PORT"),
        (["https://127.0.0.1:1"], "write HOST:PORT"),
        (["http://127.0.0.1:1/v1"], "write HOST:PORT"),
        (["me:secret@127.0.0.1:1"], "write HOST:PORT"),
        (["127.0.0.1:99999"], "write HOST:PORT"),
        (["127.0.0.1:1", "http://127.0.0.1:1"], "an address stands there twice"),
        (["10.0.0.1:30000"], "no other host can join its collective"),
    ],
)
def test_addresses_that_no_run_can_use_are_refused(addresses: list[str], said: str) -> None:
    text = refused(ADDRS, *addresses)
    assert said in text
    assert "secret" not in text


def test_a_server_of_another_host_can_read_files_or_meet_a_learner_of_a_cluster() -> None:
    """No address of a run's own Ray can be reached from elsewhere."""
    ways: list[dict[str, Any]] = [
        {"update_weight_transport": "disk"},
        {"ray_address": "10.0.0.2:6379"},
    ]
    for flags in ways:
        config = RunConfig(rollout_external_engine_addrs=["[fd00::1]:30000"], **flags)
        assert not list(about_external_engines(config))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--colocate", "--async-buffer-size", "0"), "have devices of their own"),
        (("--use-rollout-routing-replay",), "do not. Leave out one of the two"),
        (
            (
                *("--update-weight-transport", "disk", "--update-weight-disk-dir", "pushes"),
                *("--update-weight-local-checkpoint-dir", "copies"),
            ),
            "SGLang's own server cannot",
        ),
        (("--ray-address", "10.0.0.2:6379"), "name an engine by an address that all nodes reach"),
        ((KEY, "NOT_THERE_2"), "there is no such variable here"),
    ],
)
def test_what_servers_of_others_cannot_do_is_refused(flags: tuple[str, ...], said: str) -> None:
    assert said in refused(ADDRS, "127.0.0.1:1", *flags)


def test_a_key_is_named_by_its_variable_and_stands_in_no_file_but_the_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "sk-Their key")
    config = parsed(ADDRS, "127.0.0.1:1", KEY, "THEIR_KEY")
    run = RunDir(config)
    run.private = tmp_path
    spec, orders = plan_processes(config, run, cast(Nodes, OneNode()), {}, "cpu")
    assert read_key(spec.engine_key_file) == "sk-Their key"
    assert "Their key" not in repr((spec, orders, describe(config)))
    monkeypatch.setenv("THEIR_KEY", "two\nlines")
    assert "no HTTP header can" in refused(ADDRS, "127.0.0.1:1", KEY, "THEIR_KEY")


# ---- what servers say of themselves ----------------------------------------------------------


def test_a_server_like_the_runs_own_engines_joins(servers: Cluster) -> None:
    notes = check_external_engines(joins(servers, "e0", "e1"))
    assert [note.split(": ", 1)[1].split(":")[0] for note in notes] == ["it wants no key"] * 2


def test_every_field_that_matters_is_one_of_sglang() -> None:
    assert {*_OURS, *_COLLECTIVE, *_SIZES} <= {flag.key for flag in table("sglang").flags}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("version", "0.4.9", "it runs SGLang 0.4.9"),
        (
            "speculative_algorithm",
            "EAGLE",
            "--speculative-algorithm is 'EAGLE' there and None here",
        ),
        ("preferred_sampling_params", {"top_p": 0.9}, "log-probabilities would not be those"),
        ("quantization", "fp8", "--quantization is 'fp8' there"),
        ("kv_cache_dtype", "fp8_e5m2", "--kv-cache-dtype is 'fp8_e5m2' there"),
        ("disaggregation_mode", "prefill", "it would not sample whole turns by itself"),
        ("lora_paths", ["a"], "a push would not reach its weights"),
        ("tp_size", 2, "--tp-size is 2 there and 1 here"),
        ("pp_size", 2, "--pp-size is 2 there and 1 here"),
        ("attn_dp_size", 2, "turns are not sent to its groups of ranks"),
        ("device", "cuda", "--device is 'cuda' there and 'cpu' here"),
        ("enable_symm_mem", True, "set up NCCL alike"),
        ("dtype", "bfloat16", "it computes in bfloat16, and float32 is wanted"),
        ("dtype", "auto", "start it with --dtype float32"),
        ("max_req_input_len", 100, "it reads at most 100 tokens, and an episode may have 512"),
        ("weight_version", "7", "which could pass for a version of the run"),
        ("admin_api_key", "another", "start it with --api-key alone"),
    ],
)
def test_a_server_whose_turns_or_pushes_would_be_wrong_is_refused_by_its_setting(
    servers: Cluster, field: str, value: Any, said: str
) -> None:
    servers.engines["e1"].server[field] = value
    line = told(joins(servers, "e0", "e1"))
    assert line.startswith(f"{ADDRS} {servers.addresses['e1'].url}: ")
    assert said in line
    assert "\n" not in line


def test_a_setting_that_is_given_has_to_be_theirs_too(servers: Cluster) -> None:
    given = {"attention_backend": "fa3", "mem_fraction_static": 0.8}
    servers.engines["e0"].server |= given
    assert check_external_engines(joins(servers, "e0", sglang=given))
    servers.engines["e0"].server |= {"attention_backend": "triton", "mem_fraction_static": 0.2}
    line = told(joins(servers, "e0", sglang=given))
    assert "--attention-backend is 'triton' there and 'fa3' here" in line
    del given["attention_backend"]
    notes = check_external_engines(joins(servers, "e0", sglang=given))
    assert "--mem-fraction-static is 0.2 there, whatever this command line says" in notes[0]


def test_a_server_of_another_model_is_refused(servers: Cluster, tmp_path: Path) -> None:
    servers.engines["e0"].model["architectures"] = ["LlamaForCausalLM"]
    assert "its model has architectures ['LlamaForCausalLM']" in told(joins(servers, "e0"))
    servers.engines["e0"].model = dict(MODEL_INFO)
    shape = json.loads(Path(MODEL, "config.json").read_text()) | {"vocab_size": 99}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    servers.engines["e0"].server["model_path"] = str(tmp_path)
    assert f"its model {tmp_path} has vocab_size 99" in told(joins(servers, "e0"))
    servers.engines["e0"].server["model_path"] = "somewhere/else"
    notes = check_external_engines(joins(servers, "e0"))
    assert any("somewhere/else cannot be read here" in note for note in notes)


def test_turns_that_end_at_strings_want_a_server_with_a_tokenizer(servers: Cluster) -> None:
    config = joins(servers, "e0", rollout_stop=["END"])
    assert "start it without --skip-tokenizer-init" in told(config)
    servers.engines["e0"].server["skip_tokenizer_init"] = False
    assert check_external_engines(config)


def test_a_server_that_wants_a_key_is_told_of(
    servers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = servers.engines["e0"]
    engine.key = engine.server["api_key"] = "sk-1"
    assert f"it wants a key: name the variable that holds it with {KEY}" in told(
        joins(servers, "e0")
    )
    monkeypatch.setenv("THEIR_KEY", "sk-2")
    named = joins(servers, "e0", rollout_external_api_key_var="THEIR_KEY")
    assert "it wants another key than it was shown" in told(named)
    monkeypatch.setenv("THEIR_KEY", "sk-1")
    assert check_external_engines(named) == []


def test_a_server_that_is_not_there_is_told_before_the_start(servers: Cluster) -> None:
    servers.engines["e0"].die()
    line = told(joins(servers, "e0", "e1"))
    assert servers.addresses["e0"].url in line
    assert "start it first, with `python -m sglang.launch_server --model-path" in line
    notes = anyio.run(ask_engines, joins(servers, "e0", "e1"), True)
    assert "not checked, and a run needs it" in notes[0]


def test_a_folder_that_a_server_does_not_see_is_told_before_the_start(
    servers: Cluster, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    on_disk = {"update_weight_transport": "disk", "update_weight_disk_dir": str(shared)}
    config = joins(servers, "e0", "e1", **on_disk)
    check_external_engines(config)
    assert not [*shared.iterdir()]
    servers.engines["e1"].sees_folders = False
    line = told(config)
    assert servers.addresses["e1"].url in line
    assert f"it does not see --update-weight-disk-dir {shared}" in line
    asked = len(servers.engines["e1"].calls)
    anyio.run(ask_engines, config, True)  # a dry run asks no server to load anything
    assert "/update_weights_from_disk" not in servers.engines["e1"].calls[asked:]
