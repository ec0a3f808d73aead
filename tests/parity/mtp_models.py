"""Models with a layer of multi-token prediction, and what DeepSeek-V3's report says of it
(https://arxiv.org/abs/2412.19437, section 2.2, equations 21 to 25), in plain torch."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import rms_norm

from agentrl.algorithms.rows import MicroBatch
from agentrl.models.registry import families

#: What the families call the two norms, the projection and the last norm, and how these begin.
NAMES = {
    "mimo": (
        "model.mtp_layers.{n}.",
        ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    ),
    **dict.fromkeys(
        ("glm4-moe", "glm4-moe-lite", "deepseek-v3"),
        ("model.layers.{behind}.", ("enorm", "hnorm", "eh_proj", "shared_head.norm")),
    ),
}


class MtpModel(NamedTuple):
    """A transformers model whose last layers are those of the prediction, and its directory. `own`:
    of each norm of embeddings, norm of hidden states, projection, last norm, by name. `places`: how
    names of layers that predict begin, by how they do in `model`."""

    model: Any
    directory: Path
    own: list[dict[str, Tensor]]
    places: dict[str, str]
    num_layers: int
    is_hidden_first: bool

    @property
    def prefixes(self) -> tuple[str, ...]:
        return tuple(self.places.values())

    def on_disk(self, name: str) -> str:
        """What a tensor of `model` is called there."""
        for mine, theirs in self.places.items():
            name = name.replace(mine, theirs)
        return name


def make(
    family: str,
    make_hf_model: Callable[..., Any],
    directory: Path,
    number: int = 1,
    **more: Any,
) -> MtpModel:
    """The tiny member of a family, random, with so many such layers."""
    config = {**families()[family].tiny, **more}
    depth, hidden = config["num_hidden_layers"], config["hidden_size"]
    model, _ = make_hf_model({**config, "num_hidden_layers": depth + number}, directory)
    place, names = NAMES[family]
    generator = torch.Generator().manual_seed(3)
    places, own = {}, []
    for n in range(number):
        prefix = places[f"model.layers.{depth + n}."] = place.format(n=n, behind=depth + n)
        values = [torch.rand(hidden, generator=generator) + 0.5 for _ in range(3)]
        values.insert(2, torch.randn(hidden, 2 * hidden, generator=generator) * 0.2)
        named = [f"{prefix}{name}.weight" for name in names]
        own.append(dict(zip(named, values, strict=True)))
    made = MtpModel(model, directory, own, places, depth, family == "mimo")
    path = directory / "model.safetensors"
    kept = {made.on_disk(name): tensor for name, tensor in load_file(path).items()}
    save_file(kept | {k: v for each in own for k, v in each.items()}, path, {"format": "pt"})
    config_json = directory / "config.json"
    told = json.loads(config_json.read_text())
    told |= {"num_hidden_layers": depth, "num_nextn_predict_layers": number}
    for key in ("layer_types", "mlp_layer_types"):
        if told.get(key):
            told[key] = told[key][:depth]
    config_json.write_text(json.dumps(told))
    return made


def weighted(batch: MicroBatch) -> MicroBatch:
    """With a weight for each label, as the loop gives them."""
    generator = torch.Generator().manual_seed(len(batch.tokens_T))
    weights = torch.rand(len(batch.tokens_T), generator=generator) / 50
    return replace(batch, columns={**batch.columns, "weights": weights})


def reference_loss(
    made: MtpModel, own: list[dict[str, Tensor]], batch: MicroBatch
) -> tuple[Tensor, Tensor]:
    """The loss of the layers on a batch, for the factor 1, and (total, count) of its cross entropy;
    sequence by sequence, position by position. `own` and the layers have a gradient."""
    loss, total, count = torch.zeros(()), 0.0, 0
    for first, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        here = slice(int(first), int(end))
        tokens = batch.tokens_T[here]
        weights, mask = (batch.columns[name][here] for name in ("weights", "mask"))
        for depth, log_p in enumerate(_log_p(made, own, tokens), start=1):
            for position in range(len(tokens) - depth - 1):
                if mask[position + depth]:  # stands under the label, one token further
                    nll = -log_p[position, tokens[position + depth + 1]]
                    loss = loss + nll * weights[position + depth]
                    total, count = total + float(nll), count + 1
    return loss / len(own), torch.tensor([total, float(count)])


def _log_p(made: MtpModel, own: list[dict[str, Tensor]], tokens: Tensor) -> list[Tensor]:
    """[tokens, vocabulary] of each layer; its last rows mean nothing."""
    core, head = made.model.model, made.model.lm_head
    epsilon, length = made.model.config.rms_norm_eps, len(tokens)
    layers = core.layers
    core.layers = layers[: made.num_layers]
    with torch.no_grad():
        state = core(tokens[None]).last_hidden_state
    core.layers = layers
    places = torch.arange(length)[None]
    unseen = torch.full((length, length), float("-inf")).triu(1)[None, None]
    found = []
    for depth, (layer, parts) in enumerate(zip(layers[made.num_layers :], own, strict=True), 1):
        enorm, hnorm, projection, norm = parts.values()
        embedded = core.embed_tokens(tokens.roll(-depth)[None]).detach()
        pair = [_norm(embedded, enorm, epsilon), _norm(state, hnorm, epsilon)]
        joined = torch.cat(pair[::-1] if made.is_hidden_first else pair, -1) @ projection.T
        out = layer(
            joined,
            attention_mask=unseen,
            position_embeddings=core.rotary_emb(joined, places),
            position_ids=places,
        )
        state = _norm(out[0] if isinstance(out, tuple) else out, norm, epsilon)
        found.append((state[0] @ head.weight.detach().T).log_softmax(-1))
    return found


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return rms_norm(x, weight.shape, weight, epsilon)


def gradients(made: MtpModel, batches: list[MicroBatch], home: Path) -> dict[str, Tensor]:
    """The reference's gradient of the layers' tensors, by their names on disk."""
    own = [{n: t.clone().requires_grad_() for n, t in each.items()} for each in made.own]
    made.model.zero_grad()
    for batch in batches:
        torch.autograd.backward(reference_loss(made, own, batch)[0])
    values = {name: parameter.data for name, parameter in made.model.named_parameters()}
    for parameter in made.model.parameters():  # as weights they get the names of the disk
        grad = parameter.grad
        parameter.data = torch.zeros_like(parameter) if grad is None else grad
    made.model.save_pretrained(home)
    for name, parameter in made.model.named_parameters():
        parameter.data = values[name]
    stored = load_file(home / "model.safetensors")
    found = {
        made.on_disk(name): tensor
        for name, tensor in stored.items()
        if name.startswith(tuple(made.places)) and not name.endswith("e_score_correction_bias")
    }
    return found | {name: t.grad for each in own for name, t in each.items() if t.grad is not None}
