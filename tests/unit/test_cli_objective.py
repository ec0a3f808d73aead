"""A loss of the user's is found, or found missing, before anything starts."""

from pathlib import Path

import pytest

from agentrl.cli import train
from agentrl.config.resolve import parse

pytestmark = pytest.mark.slow

LOSSES = """\
def good(batch, logprobs, entropy):
    return logprobs[batch.columns["mask"]].sum(), {}
value = 3
"""


@pytest.mark.parametrize(
    ("loss", "code", "said"),
    [
        ("my_losses:absent", 2, "has no 'absent'"),
        ("nowhere:loss", 2, "No module named 'nowhere'"),
        ("my_losses:value", 2, "my_losses:value is 3, not a function"),
        ("my_losses:good", 0, ""),
    ],
)
def test_a_loss_that_is_none_is_refused(
    loss: str,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_losses.py").write_text(LOSSES)
    argv = ["--loss-type", "custom_loss", "--custom-loss-function-path", loss]
    # The model is wrong as well, so that nothing can start where this goes unnoticed.
    wrong = ["--num-layers", "99"] if code else ["--dry-run"]
    assert train.main([*argv, *wrong], "train_async") == code
    heard = capsys.readouterr()
    assert said in heard.err
    assert "--num-layers" not in heard.err


def test_a_loss_of_ones_own_makes_a_run_ones_own_although_all_else_is_the_default() -> None:
    """The default job is not looked at before it starts."""
    assert train._is_default(parse([], "train_async").config)
    argv = ["--loss-type", "custom_loss", "--custom-loss-function-path", "my:loss"]
    assert not train._is_default(parse(argv, "train_async").config)


@pytest.mark.parametrize(
    "argv",
    [
        ["--rm-url", "http://127.0.0.1:1"],
        ["--sglang-router-ip", "127.0.0.1", "--sglang-router-port", "1"],
        ["--rollout-external-engine-addrs", "127.0.0.1:1"],
    ],
)
def test_a_run_that_asks_a_server_of_somebody_else_is_no_default_job(argv: list[str]) -> None:
    """Its server is asked before anything starts."""
    more = ["--use-opd", "--opd-type", "sglang"] if argv[0] == "--rm-url" else []
    assert not train._is_default(parse([*argv, *more], "train_async").config)


@pytest.mark.parametrize(("name", "is_default"), [("qwen", True), ("tags", False)])
def test_the_format_of_the_model_that_ships_may_be_named(name: str, is_default: bool) -> None:
    config = parse(["--chat-format", name], "train_async").config
    assert train._is_default(config) == is_default
