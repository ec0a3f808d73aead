"""Weights of another model are told by each field in which that is another: of weights whose
config.json is there, and of a checkpoint by the arguments of the run that wrote it."""

import copy
from typing import Any

import msgspec
import pytest

from agentrl.models.architecture import Architecture
from agentrl.models.registry import describe_model, families
from agentrl.models.rope import LinearRope

#: In which two models may differ that have the same weights.
BESIDE = {"max_position_embeddings", "num_nextn_predict_layers", "mtp_num_layers"}


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, tuple):
        return (*value, value[0]) if value else (1,)
    return LinearRope(factor=7.0) if isinstance(value, msgspec.Struct) else 7


def architecture(family: str) -> Architecture:
    return describe_model(dict(families()[family].tiny), None, source="config.json").architecture


@pytest.mark.parametrize("family", families())
def test_each_field_of_an_architecture_is_compared(family: str) -> None:
    own = architecture(family)
    assert own.differences(own) == []
    for name, value in msgspec.structs.asdict(own).items():
        theirs = copy.copy(own)
        msgspec.structs.force_setattr(theirs, name, other(value))  # it may be a model of no family
        found = own.differences(theirs)
        assert [line.partition(" ")[0] for line in found] == ([] if name in BESIDE else [name])


@pytest.mark.parametrize("family", families())
def test_each_argument_of_the_run_that_wrote_a_checkpoint_is_compared(family: str) -> None:
    own = architecture(family)
    read = own.flags()
    names = {*msgspec.structs.asdict(own)} & read.keys() - BESIDE - {"vocab_size", "name"}
    for name in names - {"moe_layer_freq"}:
        value = getattr(own, name)
        assert own.written_otherwise({name: value}) == []
        (line,) = own.written_otherwise({name: other(value)})
        assert line.startswith(f"{name} {other(value)} instead of")
