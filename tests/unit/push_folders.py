"""Pushes in folders, for tests of those who write and of those who read them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from agentrl.serving.push_files import PushFiles, PushSettings
from tests.unit.scripted_engines import Weights, some_weights

__all__ = ["files_in", "nudged", "two_pushes", "write_model"]


def write_model(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Two files, as a large model has."""
    weights = dict(tensors)
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    places: dict[str, str] = {}
    for index, names in enumerate((list(weights)[::2], list(weights)[1::2])):
        file = f"model-{index}.safetensors"
        save_file({name: weights[name] for name in names}, folder / file)
        places |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def files_in(place: Path, **said: Any) -> PushFiles:
    return PushFiles(PushSettings(root=place / "shared", **said), write_model)


def nudged(weights: Weights, by: float) -> Weights:
    """As after a step: one tensor stays, of the others one element each changes."""
    changed = {name: tensor.clone() for name, tensor in weights.items()}
    for name in changed:
        if name != "norm":
            changed[name].view(-1)[0] += by
    return changed


def two_pushes(place: Path) -> tuple[PushFiles, Path, Path]:
    files = files_in(place, encoding="xor", keeps=True)
    first = files.write(0, some_weights(1).items()).folder
    return files, first, files.write(1, nudged(some_weights(1), 1.0).items()).folder
