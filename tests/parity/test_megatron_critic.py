"""A critic in the learner's ranks: the model of transformers below a head, in every layout, and in
one checkpoint with the policy."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agentrl.algorithms.rows import LossFn
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.checkpointing import CheckpointWriter
from agentrl.learner.megatron import MegatronBackend
from tests.parity.alone import open_alone
from tests.parity.states import DISTRIBUTED, OVERLAP, SEQUENCE, apart, wholes

Open = Callable[..., MegatronBackend]
Script = list[tuple[str, str]]


def config(ranks: int, megatron: dict[str, Any], **flags: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "lr": 1e-3,
        "critic_lr": 2e-3,
        "critic_lr_warmup_iters": 2,
        "weight_decay": 0.1,
        "clip_grad": 0.5,
        "advantage_estimator": "ppo",
        **flags,
    }
    return RunConfig(actor_num_gpus_per_node=ranks, megatron=megatron, **settings)


@pytest.fixture
def opened(hf_model: Any, free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens a single-rank backend with a critic; the one before is closed."""
    backends: list[MegatronBackend] = []

    def make(
        model: str = "qwen3",
        megatron: dict[str, Any] | None = None,
        models: tuple[str, ...] = ("critic",),
        **flags: Any,
    ) -> MegatronBackend:
        for backend in backends:
            backend.close()
        backends.append(
            open_alone(
                config(1, megatron or {}, **flags),
                hf_model(model).directory,
                free_ports(1),
                num_training_steps=6,
                models=models,
            )
        )
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


def head_of(critic: Any) -> tuple[Tensor, Tensor]:
    head = critic.module.output_layer
    return head.weight.detach().clone(), head.bias.detach().clone()


@pytest.mark.parametrize("model", ["qwen3", "qwen3-tied", "qwen3-moe"])
def test_values_and_steps_are_those_of_transformers_below_a_head(
    model: str, opened: Open, hf_model: Any, packed: Any
) -> None:
    """Of two steps of AdamW, whose head moves first and then all weights."""
    backend = opened(
        model,
        clip_grad=0.0,
        weight_decay=0.0,
        adam_eps=1e-4,
        critic_lr=2e-3,
        critic_lr_warmup_iters=2,
    )
    batches = [packed([30, 7, 12], 1), packed([21], 2)]
    base, hidden_size = hf_model(model).model, hf_model(model).model.config.hidden_size
    saved = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    head = torch.nn.Linear(hidden_size, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    adam = torch.optim.AdamW([*base.model.parameters(), *head.parameters()], eps=1e-4)

    def wanted(batch: Any) -> Tensor:
        parts = batch.tokens_T.split(batch.cu_seqlens.diff().tolist())
        return torch.cat([head(base.model(part[None])[0])[0, :, 0] for part in parts])

    def loss(batch: Any, out: Any) -> Any:
        distance = (out - batch.columns["mu"]).square() * batch.columns["mask"]
        return distance.sum() / 50.0

    try:
        assert not any(values.any() for values in backend.run("critic", batches))
        for rate in (1e-3, 2e-3):
            result = backend.step(
                "critic", batches, lambda batch, out: (loss(batch, out.values_T), {})
            )
            assert result.lr == pytest.approx(rate)
            adam.zero_grad()
            total = torch.stack([loss(batch, wanted(batch)) for batch in batches]).sum()
            torch.autograd.backward(total)
            grads = [p.grad for group in adam.param_groups for p in group["params"]]
            norm = torch.stack([grad.norm() for grad in grads if grad is not None]).norm()
            assert result.grad_norm == pytest.approx(float(norm), rel=1e-4)
            adam.param_groups[0].update(lr=rate, weight_decay=0.0)
            adam.step()
            for batch, values in zip(batches, backend.run("critic", batches), strict=True):
                torch.testing.assert_close(values, wanted(batch).detach(), rtol=1e-4, atol=1e-5)
    finally:
        base.load_state_dict(saved)
        base.zero_grad()


def test_policy_and_critic_do_not_move_each_other(
    opened: Open, follow_script: Any, pg_loss: LossFn, packed: Any
) -> None:
    backend, batches = opened(), [packed([30, 7], 1)]
    (before,) = backend.run("policy", batches)
    follow_script(backend, [("learn", "0"), ("learn", "1")])
    assert torch.equal(backend.run("policy", batches)[0], before)
    (values,) = backend.run("critic", batches)
    assert values.any()
    follow_script(backend, [("step", "0")])
    assert torch.equal(backend.run("critic", batches)[0], values)


@pytest.mark.parametrize(
    "megatron", [{}, DISTRIBUTED, {"bf16": True} | DISTRIBUTED], ids=["plain", "cut", "bf16"]
)
def test_one_checkpoint_has_both_and_each_goes_on_bit_for_bit(
    megatron: dict[str, Any], opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    """The critic has taken other steps than the policy, at a rate of its own."""
    before: Script = [("learn", "0"), ("learn", "1"), ("step", "0")]
    after: Script = [("step", "1"), ("learn", "2")]
    backend = opened(megatron=megatron)
    follow_script(backend, [*before, ("save", str(tmp_path / "a")), *after])
    follow_script(backend, [("save", str(tmp_path / "wanted"))])
    again = opened(megatron=megatron)
    follow_script(again, [("load", str(tmp_path / "a")), *after])
    follow_script(again, [("save", str(tmp_path / "found"))])
    wanted, found = wholes(tmp_path / "wanted"), wholes(tmp_path / "found")
    assert "critic.optimizer.state.exp_avg.output_layer.weight" in wanted
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    progress = [(tmp_path / name / "progress.json").read_bytes() for name in ("wanted", "found")]
    assert progress[0] == progress[1]


def kept(backend: MegatronBackend, folder: Path, run_id: str = "first") -> str:
    writer = CheckpointWriter(folder, backend, run_id=run_id)
    writer.begin(None)
    writer.save(1, version=1)
    return str(folder)


def test_a_critic_begins_with_what_critic_load_names(
    opened: Open, follow_script: Any, packed: Any, tmp_path: Path
) -> None:
    batches = [packed([30, 7], 1)]
    backend = opened(run_id="first")
    follow_script(backend, [("learn", "0"), ("learn", "1"), ("step", "0")])
    (values,) = backend.run("critic", batches)
    ours = kept(backend, tmp_path / "kept")
    backend.save_hf(tmp_path / "hf")
    (first,) = opened().run("critic", batches)
    assert not first.any()
    assert torch.equal(opened(critic_load=ours).run("critic", batches)[0], values)
    # Another run's checkpoint as --load brings its critic, unless --critic-load names one.
    state = str(tmp_path / "kept" / "iteration_0000001" / "state")
    for flags, wanted in (({}, values), ({"critic_load": str(tmp_path / "hf")}, first)):
        backend = opened(load=ours, run_id="second", **flags)
        follow_script(backend, [("load", state)])
        assert torch.equal(backend.run("critic", batches)[0], wanted)
    # The weights below its head are the policy's.
    follow_script(opened(critic_load=str(tmp_path / "hf")), [("save", str(tmp_path / "new"))])
    found, policys = wholes(tmp_path / "new"), wholes(Path(state))
    name = "decoder.layers.0.self_attention.linear_qkv.weight"
    assert torch.equal(found[f"critic.{name}"], policys[name])


def test_a_run_may_gain_and_lose_its_critic(
    opened: Open, follow_script: Any, packed: Any, tmp_path: Path
) -> None:
    backend = opened(models=())
    follow_script(backend, [("step", "0"), ("save", str(tmp_path / "without"))])
    backend = opened()
    follow_script(backend, [("load", str(tmp_path / "without")), ("learn", "0")])
    follow_script(backend, [("save", str(tmp_path / "with"))])
    follow_script(opened(models=()), [("load", str(tmp_path / "with")), ("step", "1")])


def test_a_run_that_goes_on_does_not_read_what_its_critic_began_with(
    opened: Open, tmp_path: Path
) -> None:
    own = {"run_id": "r", "resume": str(tmp_path / "r"), "run_dir": str(tmp_path)}
    kept(opened(run_id="r"), tmp_path / "r" / "recovery", "r")
    opened(critic_load=str(tmp_path / "gone"), **own)


def test_the_last_rate_is_that_of_the_policys_last_step_which_begins_late(
    opened: Open, pg_loss: LossFn, packed: Any
) -> None:
    """Of three iterations of two steps the critic has the first one for itself."""
    flags: dict[str, Any] = {"lr_decay_style": "linear", "critic_lr_warmup_iters": 0}
    backend = opened(num_steps_per_rollout=2, num_critic_only_steps=1, min_lr=1e-4, **flags)
    batches = [packed([9], 1)]
    rates = [backend.step("policy", batches, pg_loss).lr for _ in range(4)]
    assert rates[2] > 1.1e-4
    assert rates[3] == pytest.approx(1e-4)


def test_a_critic_of_another_model_is_refused(opened: Open, hf_model: Any) -> None:
    with pytest.raises(ConfigError, match=r"does not fit its config\.json"):
        opened(critic_load=str(hf_model("qwen2").directory))


# ---- several ranks -------------------------------------------------------------------------------

#: Name -> ranks, model, Megatron settings.
LAYOUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "dp2": (2, "qwen3-tied-odd", DISTRIBUTED),
    "dp2-overlap": (2, "qwen3", OVERLAP),
    "tp2": (2, "qwen3", {"tensor_model_parallel_size": 2}),
    "tp2-sequence": (2, "qwen3", SEQUENCE | DISTRIBUTED),
    "tp2-sequence-tied": (2, "qwen3-tied", SEQUENCE),
    "pp2-tied": (2, "qwen3-tied", {"pipeline_model_parallel_size": 2}),
    "cp2": (2, "qwen3", {"context_parallel_size": 2} | DISTRIBUTED),
    "ep2": (2, "qwen3-moe", {"expert_model_parallel_size": 2}),
}
SCRIPT = "learn 0, step 0, learn 1, save {0}, values {0}-values"


def script_of(home: Path, name: str) -> Script:
    words = [line.split(" ") for line in SCRIPT.format(name).split(", ")]
    return [(verb, arg if verb in ("learn", "step") else str(home / arg)) for verb, arg in words]


@pytest.fixture(scope="module")
def home(hf_model: Any, run_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all layouts left their states and values."""
    home = tmp_path_factory.mktemp("critics")
    jobs = [
        {
            "config": msgspec.to_builtins(config(ranks, megatron, adam_eps=1e-6)),
            "model_dir": str(hf_model(model).directory),
            "target": str(home / f"{name}-job"),
            "models": ["critic"],
            "script": script_of(home, name),
        }
        for name, (ranks, model, megatron) in LAYOUTS.items()
    ]
    run_ranks(home, 2, jobs)
    return home


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_learns_the_values_of_one_process(
    name: str, home: Path, opened: Open, follow_script: Any
) -> None:
    ranks, model, _ = LAYOUTS[name]
    one = f"one-of-{model}"
    if not (home / one).exists():
        follow_script(opened(model, adam_eps=1e-6), script_of(home, one))
    assert apart(wholes(home / name), wholes(home / one)) < 1e-5
    wanted = load_file(home / f"{one}-values-0")
    covered: set[str] = set()
    for rank in range(ranks):
        found = load_file(home / f"{name}-values-{rank}")
        assert apart(found, {key: wanted[key] for key in found}) < 1e-5
        covered |= found.keys()
    assert covered == wanted.keys()
    assert all(values.any() for values in wanted.values())
