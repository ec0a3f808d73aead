"""One process: megatron-core's model, log-probabilities and step against transformers and torch."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.config import answers
from agentrl.config.command_line import read_flags
from agentrl.config.learner_memory import learner_bytes
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import families, open_model
from tests.parity.alone import open_alone
from tests.slices import of_the_day

LR, DECAY, CLIP = 1e-3, 0.1, 0.5
BETAS = (0.8, 0.95)
Open = Callable[..., MegatronBackend]


@pytest.fixture
def open_backend(free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens one single-rank backend and closes it after the test."""
    opened: list[MegatronBackend] = []

    def make(
        directory: Path, megatron: dict[str, Any] | None = None, **flags: Any
    ) -> MegatronBackend:
        settings: dict[str, Any] = {"lr": LR, "weight_decay": DECAY, "clip_grad": CLIP}
        settings |= {"adam_beta1": BETAS[0], "adam_beta2": BETAS[1]} | flags
        cfg = RunConfig(actor_num_gpus_per_node=1, megatron=megatron or {}, **settings)
        backend = open_alone(cfg, directory, free_ports(1), models=load_algorithm(cfg).needs.models)
        opened.append(backend)
        return backend

    yield make
    for backend in opened:
        backend.close()


def worst(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


def trained(directory: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those that a layer here has."""
    is_passenger = open_model(directory, None).is_passenger
    return {name: tensor for name, tensor in tensors.items() if not is_passenger(name)}


def hf_weights(model: Any) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def torch_steps(
    model: Any, steps: list[list[MicroBatch]], loss_fn: LossFn, hf_scores: Any
) -> tuple[dict[str, Tensor], list[float]]:
    """AdamW with clipping on a copy of the transformers model: its weights and gradient norms."""
    model = copy.deepcopy(model)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=DECAY, betas=BETAS)
    norms = []
    for batches in steps:
        optimizer.zero_grad()
        for batch in batches:
            torch.autograd.backward(loss_fn(batch, Outputs(*hf_scores(model, batch)))[0])
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
    return hf_weights(model), norms


@pytest.mark.parametrize("name", of_the_day([*families(), "qwen3-tied"], 4))
def test_packed_logprobs_equal_those_of_transformers_one_by_one(
    name: str, hf_model: Any, packed: Any, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model(name)
    batches = [packed([30, 7, 19, 1], 1), packed([12], 2)]
    found = open_backend(directory).run("policy", batches)
    for batch, logprobs in zip(batches, found, strict=True):
        wanted = hf_scores(model, batch)[0].detach()
        assert logprobs.dtype == torch.float32
        assert not logprobs.requires_grad
        assert float((logprobs - wanted).abs().max()) < 1e-5


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ],
    ids=lambda scaling: str(scaling["rope_type"]),
)
def test_scaled_rotary_positions_are_those_of_transformers(
    family: str,
    scaling: dict[str, Any],
    make_hf_model: Any,
    packed: Any,
    hf_scores: Any,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    tiny = families()[family].tiny
    model, directory = make_hf_model({**tiny, "rope_scaling": dict(scaling)}, tmp_path / "scaled")
    plain = make_hf_model(tiny, tmp_path / "plain").model
    batch = packed([90, 7, 40], 1)
    (found,) = open_backend(directory).run("policy", [batch])
    wanted, unscaled = (hf_scores(each, batch)[0].detach() for each in (model, plain))
    assert float((found - wanted).abs().max()) < 1e-5
    assert float((unscaled - wanted).abs().max()) > 1e-2


def test_a_sliding_window_is_that_of_transformers_and_of_the_model_without_one_where_it_fits(
    hf_model: Any, packed: Any, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model("mistral-window")
    batch = packed([600, 8, 30, 1], 1)
    (found,) = open_backend(directory).run("policy", [batch])
    wanted = hf_scores(model, batch)[0].detach()
    assert float((found - wanted).abs().max()) < 1e-5
    without = hf_scores(hf_model("mistral").model, batch)[0].detach()
    short = slice(600, 608)
    assert torch.equal(without[short], wanted[short])
    assert float((without - wanted).abs().max()) > 1e-2


def test_logprobs_are_of_the_distribution_that_was_sampled_from(
    hf_model: Any, packed: Any, open_backend: Open
) -> None:
    """The engine reports log softmax(logits / temperature): so must the learner."""
    model, directory = hf_model("qwen3")
    batch = packed([12], 2)
    (found,) = open_backend(directory, rollout_temperature=0.7).run("policy", [batch])
    log_p = (model(batch.tokens_T[None]).logits[0] / 0.7).log_softmax(-1)
    wanted = log_p.gather(-1, batch.labels_T[:, None])[:, 0].detach()
    assert float((found - wanted).abs().max()) < 1e-4


def test_the_reference_is_scored_at_the_temperature_too(
    hf_model: Any, packed: Any, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3")
    batch = packed([12], 2)
    flags = {"use_kl_loss": True, "kl_loss_coef": 0.1, "rollout_temperature": 0.7}
    (found,) = open_backend(directory, **flags).run("reference", [batch])
    log_p = (model(batch.tokens_T[None]).logits[0] / 0.7).log_softmax(-1)
    wanted = log_p.gather(-1, batch.labels_T[:, None])[:, 0].detach()
    assert float((found - wanted).abs().max()) < 1e-4


def test_a_gradient_at_a_temperature_equals_that_of_transformers(
    hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3")

    def hf_scores_at(model: Any, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        log_p = (model(batch.tokens_T[None]).logits[0] / 0.7).log_softmax(-1)
        logprobs_T = log_p.gather(-1, batch.labels_T[:, None])[:, 0]
        return logprobs_T, -(log_p.exp() * log_p).sum(-1)

    steps = [[packed([30], 1), packed([19], 2)]]
    wanted, norms = torch_steps(model, steps, pg_loss, hf_scores_at)
    backend = open_backend(directory, rollout_temperature=0.7)
    found = [backend.step("policy", batches, pg_loss).grad_norm for batches in steps]
    assert found == pytest.approx(norms, abs=1e-4)
    assert worst(dict(backend.hf_tensors()), wanted) < 1e-4


def test_bf16_logits_lose_nothing_to_a_temperature(hf_model: Any, open_backend: Open) -> None:
    """One sequence once for each label: all log-probabilities at 1 tell those at 0.7."""
    _, directory = hf_model("qwen3")
    vocab, length = 96, 11
    tokens = torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(4))
    batch = MicroBatch(
        tokens_T=tokens.repeat(vocab),
        labels_T=torch.arange(vocab).repeat_interleave(length),
        positions_T=torch.arange(length).repeat(vocab),
        cu_seqlens=torch.arange(0, vocab * length + 1, length, dtype=torch.int32),
        max_seqlen=length,
        columns={},
    )

    def log_p(temperature: float) -> Tensor:
        backend = open_backend(directory, {"bf16": True}, rollout_temperature=temperature)
        (found,) = backend.run("policy", [batch])
        backend.close()
        return found.view(vocab, length)

    assert float((log_p(0.7) - (log_p(1.0) / 0.7).log_softmax(0)).abs().max()) < 1e-3


@pytest.mark.parametrize("name", of_the_day([*families(), "qwen3-tied"], 4))
def test_weights_come_out_bit_equal_under_their_own_names(
    name: str, hf_model: Any, open_backend: Open
) -> None:
    _, directory = hf_model(name)
    exported = dict(open_backend(directory).hf_tensors())
    wanted = trained(directory, load_file(directory / "model.safetensors"))
    assert exported.keys() == wanted.keys()
    assert all(torch.equal(exported[name], wanted[name]) for name in wanted)


#: What slime's scripts tell Megatron of a dense model and its optimizer.
TOLD = {
    "optimizer": "adam",
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "use_rotary_position_embeddings": True,
    "group_query_attention": True,
    "swiglu": True,
    "disable_bias_linear": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "attention_softmax_in_fp32": True,
}


@pytest.mark.parametrize(
    "megatron",
    [
        pytest.param(TOLD, id="as-scripts-say"),
        {"use_distributed_optimizer": True},
        {
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
        },
        {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        },
        {"recompute_granularity": "selective"},
    ],
    ids="-".join,
)
def test_two_steps_equal_torch_adamw_on_the_transformers_model(
    megatron: dict[str, Any],
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    hf_scores: Any,
    open_backend: Open,
) -> None:
    model, directory = hf_model("qwen3")
    steps = [[packed([30, 7], 1), packed([19], 2), packed([5, 5, 5], 3)], [packed([40, 2], 4)]]
    wanted, norms = torch_steps(model, steps, pg_loss, hf_scores)
    flags = {"lr": LR, "weight_decay": DECAY, "clip_grad": CLIP}
    flags |= {"adam_beta1": BETAS[0], "adam_beta2": BETAS[1]}
    backend = open_backend(directory, megatron, **flags)
    results = [backend.step("policy", batches, pg_loss) for batches in steps]
    assert [result.skipped for result in results] == [False, False]
    assert [result.grad_norm for result in results] == pytest.approx(norms, abs=1e-4)
    (num_tokens,) = results[0].metrics["custom_tokens"]
    assert num_tokens == (37 - 2) + (19 - 1) + (15 - 3)
    assert max(norms) > CLIP
    assert worst(dict(backend.hf_tensors()), wanted) < 1e-4
    assert worst(hf_weights(model), wanted) > 1e-3


@pytest.mark.parametrize("name", of_the_day(list(families()), 4))
def test_every_gradient_equals_that_of_transformers(
    name: str,
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    hf_scores: Any,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    model, directory = hf_model(name)
    model, batch = copy.deepcopy(model), packed([30, 7, 19], 1)
    torch.autograd.backward(pg_loss(batch, Outputs(*hf_scores(model, batch)))[0])
    # As weights, the gradients get the names that they have on disk.
    for parameter in model.parameters():
        unused = torch.zeros_like(parameter)
        parameter.data = unused if parameter.grad is None else parameter.grad
    model.save_pretrained(tmp_path)
    wanted = trained(directory, load_file(tmp_path / "model.safetensors"))
    backend = open_backend(directory, clip_grad=0.0)
    backend.step("policy", [batch], pg_loss)
    for parameter in backend._model.parameters():
        parameter.data.copy_(parameter.main_grad)
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    assert worst(dict(backend.hf_tensors()), wanted) < 1e-5 * max(1.0, largest)


@pytest.mark.parametrize("name", ["qwen3", "qwen3-tied"])
def test_logits_of_scored_labels_alone_give_the_same_step(
    name: str, hf_model: Any, packed: Any, pg_loss: LossFn, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model(name)
    steps = [[packed([30, 7], 1, 0.7), packed([19], 2, 0.7)], [packed([2, 3], 3, 1.0)]]
    wanted, norms = torch_steps(model, steps, pg_loss, hf_scores)
    backend = open_backend(directory)
    (first, *_) = backend.run("policy", steps[0])
    scored = steps[0][0].columns["scored"]
    assert 0 < int(scored.sum()) < len(scored)
    assert float((first - hf_scores(model, steps[0][0])[0]).abs()[scored].max()) < 1e-4
    assert first[~scored].abs().max() == 0
    results = [backend.step("policy", batches, pg_loss) for batches in steps]
    assert [result.grad_norm for result in results] == pytest.approx(norms, abs=1e-4)
    assert worst(dict(backend.hf_tensors()), wanted) < 1e-4


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe"])
def test_a_learner_draws_nothing_at_random(
    name: str, hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    from agentrl.learner.megatron import rng  # megatron-core is imported behind MegatronBackend

    directory, batches = hf_model(name)[1], [packed([30, 7], 1), packed([19], 2)]
    backend = open_backend(directory, seed=7)
    assert torch.initial_seed() == 7
    before = rng.capture()
    scored = backend.run("policy", batches)
    backend.step("policy", batches, pg_loss)
    assert rng.capture() == before
    backend.close()
    others = open_backend(directory, seed=8).run("policy", batches)
    assert torch.initial_seed() == 8
    assert all(torch.equal(one, other) for one, other in zip(scored, others, strict=True))
    (note,) = answers.notes(read_flags(["--no-load-rng"]).asked)
    assert note.startswith("--no-load-rng: not needed: the learner draws nothing at random")


@pytest.mark.parametrize("name", ["qwen3-prime", "qwen3-tied-prime"])
def test_a_padded_vocabulary_takes_no_part(
    name: str, hf_model: Any, packed: Any, pg_loss: LossFn, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model(name)
    steps = [[packed([30, 7], 1), packed([19], 2)], [packed([40, 2], 4)]]
    wanted, norms = torch_steps(model, steps, pg_loss, hf_scores)
    backend = open_backend(directory, {"make_vocab_size_divisible_by": 64})
    (found, _) = backend.run("policy", steps[0])
    assert float((found - hf_scores(model, steps[0][0])[0]).abs().max()) < 1e-5
    results = [backend.step("policy", batches, pg_loss) for batches in steps]
    assert [result.grad_norm for result in results] == pytest.approx(norms, abs=1e-4)
    assert worst(dict(backend.hf_tensors()), wanted) < 1e-4
    embedding = backend._model[0].module.embedding.word_embeddings.weight
    assert len(embedding) == 128
    assert not embedding[97:].any()


def test_tied_weights_are_trained_as_one(
    hf_model: Any, packed: Any, pg_loss: LossFn, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3-tied")
    steps = [[packed([30, 7], 1)], [packed([19], 2)]]
    wanted, _ = torch_steps(model, steps, pg_loss, hf_scores)
    backend = open_backend(directory)
    for batches in steps:
        backend.step("policy", batches, pg_loss)
    assert worst(dict(backend.hf_tensors()), wanted) < 1e-4


@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(
    distributed: bool,
    poison: str,
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    open_backend: Open,
) -> None:
    _, directory = hf_model("qwen3")
    batch = packed([30, 7], 1)
    flags = {"lr_warmup_iters": 10}

    def poisoned(micro_batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        value, metrics = pg_loss(micro_batch, out)
        return value + torch.inf if poison == "loss" else value * torch.nan, metrics

    backend = open_backend(directory, {"use_distributed_optimizer": distributed}, **flags)
    first = backend.step("policy", [batch], pg_loss)
    before = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    bad = backend.step("policy", [batch, batch], poisoned)
    after = dict(backend.hf_tensors())
    assert bad.skipped
    assert all(torch.equal(after[name], before[name]) for name in before)
    second = backend.step("policy", [batch], pg_loss)
    assert not second.skipped
    assert (first.lr, bad.lr, second.lr) == pytest.approx((LR / 10, 2 * LR / 10, 2 * LR / 10))
    with_skip = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    backend.close()

    clean = open_backend(directory, {"use_distributed_optimizer": distributed}, **flags)
    clean.step("policy", [batch], pg_loss)
    clean.step("policy", [batch], pg_loss)
    assert worst(with_skip, dict(clean.hf_tensors())) == 0.0


def test_a_step_without_micro_batches_has_no_gradient(
    hf_model: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    _, directory = hf_model("qwen3")
    result = open_backend(directory).step("policy", [], pg_loss)
    assert (result.skipped, result.grad_norm, result.metrics) == (False, 0.0, {})


def test_the_reference_keeps_the_first_weights(
    hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    _, directory = hf_model("qwen3")
    batch = packed([30, 7], 1)
    backend = open_backend(directory, use_kl_loss=True, kl_loss_coef=0.1)
    (before,) = backend.run("policy", [batch])
    backend.step("policy", [batch], pg_loss)
    assert torch.equal(backend.run("reference", [batch])[0], before)
    assert not torch.equal(backend.run("policy", [batch])[0], before)


def test_a_reference_that_was_not_asked_for_is_refused(
    hf_model: Any, packed: Any, open_backend: Open
) -> None:
    backend = open_backend(hf_model("qwen3").directory)
    with pytest.raises(ValueError, match="there is no reference model here, only policy"):
        backend.run("reference", [packed([4], 1)])


def test_bf16_trains_close_to_float32(
    hf_model: Any, packed: Any, pg_loss: LossFn, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3")
    steps = [[packed([30, 7], 1)], [packed([19], 2)]]
    _, norms = torch_steps(model, steps, pg_loss, hf_scores)
    backend = open_backend(directory, {"bf16": True, "use_distributed_optimizer": True})
    found = [backend.step("policy", batches, pg_loss).grad_norm for batches in steps]
    assert found == pytest.approx(norms, rel=0.05)
    assert {tensor.dtype for _, tensor in backend.hf_tensors()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "megatron",
    [
        {},
        {"bf16": True},
        {"bf16": True, "use_distributed_optimizer": True},
        {"bf16": True, "accumulate_allreduce_grads_in_fp32": False},
    ],
    ids=lambda megatron: "-".join(megatron) or "plain",
)
def test_a_rank_holds_the_bytes_that_a_dry_run_says(
    megatron: dict[str, Any], hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3")
    backend = open_backend(directory, megatron)
    backend.step("policy", [packed([30, 7], 1)], pg_loss)
    tensors = [parameter.data for parameter in backend._model.parameters()]
    tensors += [buffer.grad_data for stage in backend._model for buffer in stage.buffers]
    for part in backend._optimizer.held():
        tensors += part.tensors.values()
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    held = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
    config = RunConfig(actor_num_gpus_per_node=1, megatron=megatron)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    # Buffers of a distributed optimizer are padded.
    assert held == pytest.approx(learner_bytes(config, num_parameters), rel=0.01)


def test_a_saved_model_loads_in_transformers_and_again_here(
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    import transformers

    _, directory = hf_model("qwen3-tied")
    batch = packed([30, 7], 1)
    backend = open_backend(directory)
    backend.step("policy", [batch], pg_loss)
    target = tmp_path / "out" / "model"
    backend.save_hf(target)
    backend.save_hf(target)
    trained = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    (logprobs,) = backend.run("policy", [batch])
    backend.close()

    model = transformers.AutoModelForCausalLM.from_pretrained(target)
    assert worst(hf_weights(model), trained) == 0.0
    assert (target / "generation_config.json").exists()
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert torch.equal(open_backend(target).run("policy", [batch])[0], logprobs)


def test_a_checkpoint_that_does_not_fit_is_refused_by_the_names_of_its_tensors(
    hf_model: Any, open_backend: Open, tmp_path: Path
) -> None:
    _, directory = hf_model("qwen3")
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.9.mlp.up_proj.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"missing model\.layers\.0.*unexpected model\.layers\.9"):
        open_backend(tmp_path)


def test_a_sharded_checkpoint_is_read_like_a_single_file(
    hf_model: Any, open_backend: Open, tmp_path: Path
) -> None:
    model, _ = hf_model("qwen3")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert worst(dict(open_backend(tmp_path).hf_tensors()), hf_weights(model)) == 0.0
