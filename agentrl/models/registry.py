"""Which family a model directory is of, and what its config.json says.

`--model-family` decides when it is given; otherwise the architecture that config.json names does,
among the families here and those that packages announce. Refused, by name: an architecture that no
family reads, and what a family refuses.
"""

import importlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.errors import ConfigError
from agentrl.model_dir import CONFIG, decoder_config
from agentrl.models.architecture import Architecture
from agentrl.models.family import Family
from agentrl.shipped import MODEL_FAMILIES
from agentrl.user_code import Kind, announced, load, load_named
from agentrl.user_traceback import words_of

__all__ = ["GROUP", "Model", "describe_model", "families", "open_model"]

#: Entry point group under which packages announce families, by Hugging Face architecture.
GROUP = "agentrl.models"

#: Architectures whose attention looks at some of the keys, which an indexer chooses.
_SPARSE = {
    "GlmMoeDsaForCausalLM": "GLM-5",
    "DeepseekV32ForCausalLM": "DeepSeek-V3.2",
}


class Model(NamedTuple):
    """A model as its directory describes it."""

    family: Family
    architecture: Architecture

    def is_passenger(self, name: str) -> bool:
        """Whether a tensor of its directory is kept, and no layer here has it."""
        rule = self.family.is_passenger
        return rule is not None and rule(name, self.architecture)


@cache
def families() -> dict[str, Family]:
    """The families that ship, by name."""
    places = MODEL_FAMILIES.places
    return {name: importlib.import_module(place).FAMILY for name, place in places.items()}


def open_model(model_dir: Path, given: str | None) -> Model:
    """The model in `model_dir`. `given` is `--model-family`: an architecture, `pkg.module:NAME` or
    `path/to/file.py[:NAME]`, NAME being FAMILY unless it says otherwise. Raises ConfigError."""
    return describe_model(decoder_config(model_dir), given, source=str(model_dir / CONFIG))


def describe_model(config: dict[str, Any], given: str | None, *, source: str) -> Model:
    """As `open_model`, of a decoded config.json; `source` names it in errors."""
    names = config.get("architectures") or []
    name = str(names[0]) if len(names) == 1 else str(names)
    family = _listed(name, source) if given is None else _given(given)
    if name not in family.architectures:
        raise ConfigError(
            f"{source}: architecture {name} is not one of --model-family {given}, which reads "
            f"{', '.join(family.architectures)}"
        )
    try:
        return Model(family, family.read({**family.defaults, **config}))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except KeyError as error:
        raise ConfigError(f"{source} lacks {error}, which a {name} must have") from None
    except Exception as error:
        raise ConfigError(
            f"model family {family.name} cannot read {source}: {words_of(error)}"
        ) from error


def _listed(name: str, source: str) -> Family:
    if name in _SPARSE:
        raise ConfigError(
            f"{source}: architecture {name} ({_SPARSE[name]}) is not supported: its sparse "
            "attention takes no packed sequences in megatron-core 0.16"
        )
    offered = load_named(_kind(), name)
    if offered is None:
        known = dict.fromkeys(each for each, _ in announced(_kind()))
        raise ConfigError(
            f"{source}: architecture {name} is not supported; supported are {', '.join(known)}; "
            "--model-family names the file of another family (CONTRIBUTING.md)"
        )
    return offered[1]


def _given(spec: str) -> Family:
    return load(_kind(), f"{spec}:FAMILY" if spec.endswith(".py") else spec)


@cache
def _kind() -> Kind[Family]:
    return Kind(
        group=GROUP,
        noun="model family",
        must_be="a Family of agentrl.models",
        write="`FAMILY = Family(...)`",
        take=lambda value: value if isinstance(value, Family) else None,
        builtin={
            architecture: f"{MODEL_FAMILIES.places[name]}:FAMILY"
            for name, family in families().items()
            for architecture in family.architectures
        },
        flag="--model-family",
    )
