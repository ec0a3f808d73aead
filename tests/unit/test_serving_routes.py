"""What is made of the experts that an engine tells, and what it tells wrongly."""

import base64

import numpy as np
import pytest

from agentrl.columns import Column
from agentrl.errors import EngineError
from agentrl.models.routes import Routes
from agentrl.serving.routes import read_routes

#: The second and third of three layers have 24 experts, two for each token.
ROUTES = Routes(Column("experts", "|u1", (2, 2), fill=255), 3, (1, 2), 24)


def told(num_fed: int) -> str:
    return base64.b64encode(np.arange(num_fed * 6, dtype="<i4").tobytes()).decode()


def one_is(expert: int, number: int) -> str:
    """Three tokens of which one has `expert` in a layer with experts."""
    experts = np.arange(18, dtype="<i4")
    experts[number] = expert
    return base64.b64encode(experts.tobytes()).decode()


def test_layers_without_experts_are_left_out() -> None:
    found = read_routes(told(3), 3, [7, 7], ROUTES, "turn")
    assert found.dtype == np.uint8
    assert found.tolist() == [[[2, 3], [4, 5]], [[8, 9], [10, 11]], [[14, 15], [16, 17]]]


def test_tokens_that_were_fed_again_under_newer_weights_have_none() -> None:
    found = read_routes(told(4), 4, [7, 7, 8], ROUTES, "turn")
    assert [bool((row == 255).all()) for row in found] == [False, True, True, False]


def test_the_last_expert_of_the_model_is_one_of_it() -> None:
    assert read_routes(one_is(23, 9), 3, [1], ROUTES, "turn")[1, 0].tolist() == [8, 23]


@pytest.mark.parametrize(
    ("answered", "says"),
    [
        (None, "0 routed experts do not match 3 tokens that were fed, 3 layers and 2 experts"),
        ("", "0 routed experts do not match"),
        (told(4), "24 routed experts do not match"),
        ("&&&", "cannot be read"),
        ("YWI=", "cannot be read"),
        (base64.b64encode(np.full(18, 255, "<i4").tobytes()).decode(), "go from 255 to 255"),
        (base64.b64encode(np.full(18, -1, "<i4").tobytes()).decode(), "go from -1 to -1"),
        (one_is(24, 9), "go from 2 to 24, and the model has 24, counted from 0"),
        (one_is(10, 11), "token 1 was sent twice to expert 10 in layer 1 of those with experts"),
    ],
)
def test_what_does_not_add_up_is_the_engines_fault(answered: str | None, says: str) -> None:
    with pytest.raises(EngineError, match=f"turn of x: .*{says}"):
        read_routes(answered, 3, [1], ROUTES, "turn of x")
