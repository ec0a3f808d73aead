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
    """A transformers model whose last layer is that of the prediction, and its directory. `own`:
    norm of embeddings, norm of hidden states, projection, last norm. `names`: those of `own`."""

    model: Any
    directory: Path
    own: list[Tensor]
    names: list[str]
    prefix: str
    num_layers: int
    is_hidden_first: bool


def make(family: str, make_hf_model: Callable[..., Any], directory: Path, **more: Any) -> MtpModel:
    """The tiny member of a family, random, with one such layer."""
    config = {**families()[family].tiny, **more}
    depth = config["num_hidden_layers"]
    model, _ = make_hf_model({**config, "num_hidden_layers": depth + 1}, directory)
    place, names = NAMES[family]
    prefix = place.format(n=0, behind=depth)
    hidden = config["hidden_size"]
    generator = torch.Generator().manual_seed(3)
    own = [torch.rand(hidden, generator=generator) + 0.5 for _ in range(3)]
    own.insert(2, torch.randn(hidden, 2 * hidden, generator=generator) * 0.2)
    named = [f"{prefix}{name}.weight" for name in names]
    path = directory / "model.safetensors"
    last = f"model.layers.{depth}."
    kept = {name.replace(last, prefix): tensor for name, tensor in load_file(path).items()}
    save_file(kept | dict(zip(named, own, strict=True)), path, metadata={"format": "pt"})
    config_json = directory / "config.json"
    told = json.loads(config_json.read_text())
    told |= {"num_hidden_layers": depth, "num_nextn_predict_layers": 1}
    for key in ("layer_types", "mlp_layer_types"):
        if told.get(key):
            told[key] = told[key][:depth]
    config_json.write_text(json.dumps(told))
    return MtpModel(model, directory, own, named, prefix, depth, family == "mimo")


def weighted(batch: MicroBatch) -> MicroBatch:
    """With a weight for each label, as the loop gives them."""
    generator = torch.Generator().manual_seed(len(batch.tokens_T))
    weights = torch.rand(len(batch.tokens_T), generator=generator) / 50
    return replace(batch, columns={**batch.columns, "weights": weights})


def reference_loss(made: MtpModel, own: list[Tensor], batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """The loss of the layer on a batch, for the factor 1, and (total, count) of its cross entropy;
    sequence by sequence, position by position. `own` and the model's last layer have a gradient."""
    loss, total, count = torch.zeros(()), 0.0, 0
    for first, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        here = slice(int(first), int(end))
        tokens = batch.tokens_T[here]
        if len(tokens) < 3:
            continue
        log_p = _log_p(made, own, tokens)
        weights, mask = (batch.columns[name][here] for name in ("weights", "mask"))
        for position in range(len(tokens) - 2):
            if mask[position + 1]:  # stands under the label, token position + 2
                nll = -log_p[position, tokens[position + 2]]
                loss = loss + nll * weights[position + 1]
                total, count = total + float(nll), count + 1
    return loss, torch.tensor([total, float(count)])


def _log_p(made: MtpModel, own: list[Tensor], tokens: Tensor) -> Tensor:
    """[tokens, vocabulary]; the last row means nothing."""
    core, head = made.model.model, made.model.lm_head
    epsilon = made.model.config.rms_norm_eps
    layers = core.layers
    core.layers = layers[: made.num_layers]
    with torch.no_grad():
        hidden = core(tokens[None]).last_hidden_state
        embedded = core.embed_tokens(tokens.roll(-1)[None])
    core.layers = layers
    enorm, hnorm, projection, norm = own
    pair = [_norm(embedded, enorm, epsilon), _norm(hidden, hnorm, epsilon)]
    joined = torch.cat(pair[::-1] if made.is_hidden_first else pair, -1) @ projection.T
    places, length = torch.arange(len(tokens))[None], len(tokens)
    unseen = torch.full((length, length), float("-inf")).triu(1)[None, None]
    out = layers[made.num_layers](
        joined,
        attention_mask=unseen,
        position_embeddings=core.rotary_emb(joined, places),
        position_ids=places,
    )
    out = out[0] if isinstance(out, tuple) else out
    logits = _norm(out, norm, epsilon)[0] @ head.weight.detach().T
    return logits.log_softmax(-1)


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return rms_norm(x, weight.shape, weight, epsilon)


def gradients(made: MtpModel, batches: list[MicroBatch], home: Path) -> dict[str, Tensor]:
    """The reference's gradient of the layer's tensors, by their names on disk."""
    own = [tensor.clone().requires_grad_() for tensor in made.own]
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
    last = f"model.layers.{made.num_layers}."
    stored = load_file(home / "model.safetensors")
    found = {
        name.replace(last, made.prefix): tensor
        for name, tensor in stored.items()
        if name.startswith(last) and not name.endswith("e_score_correction_bias")
    }
    grads = [tensor.grad for tensor in own]
    return found | {name: g for name, g in zip(made.names, grads, strict=True) if g is not None}
