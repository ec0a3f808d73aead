"""What stands beside the weights in a checkpoint of Megatron's, hostile or damaged: the arguments
in common.pt, and what an optimizer kept. Nothing of it runs, and what is refused is named by file
and field."""

import argparse
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as torch_format
from torch.distributed.checkpoint.filesystem import _StorageInfo

from agentrl.config.torch_dist import Header, read_header, state_in
from agentrl.errors import ConfigError
from agentrl.models.headers import check_header
from agentrl.models.registry import describe_model, families
from tests.security.hostile_checkpoints import CANARY, KEY, SHAPE, TENSOR, whole_checkpoint

STATE = f"optimizer.state.exp_avg.{KEY}"
STATE_FILE = "__1_0.distcp"


class Called:
    """Pickled as a call of `function`."""

    def __init__(self, function: Any, *given: Any) -> None:
        self._what = function, given

    def __reduce__(self) -> Any:
        return self._what


class Stated:
    """Pickled as an argparse.Namespace that is given `state`."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __reduce__(self) -> Any:
        return argparse.Namespace, (), self._state


def laughs(width: int, depth: int) -> Any:
    """A list of one list, often, and so on: small on disk, and without an end for who walks it."""
    found: Any = {"step": 1}
    for _ in range(depth):
        found = [found] * width
    return found


def read_common(place: Path, **common: Any) -> Header:
    folder = whole_checkpoint(place / "kept")
    torch.save({"iteration": 10, "checkpoint_version": 3.0} | common, folder / "common.pt")
    return read_header(place / "kept")


def touch() -> Called:
    return Called(os.system, f"touch {CANARY}")


@pytest.mark.parametrize(
    "given",
    [
        argparse.Namespace(num_layers=touch()),
        argparse.Namespace(num_layers=2, data_path=[{"deep": (touch(),)}]),
        Stated({"__class__": Called(eval, f"open({str(CANARY)!r}, 'w')")}),
        Stated({"num_layers": Called(getattr, argparse.Namespace, "__subclasses__")}),
        Stated(Called(open, str(CANARY), "w")),
        Called(argparse.FileType("w"), str(CANARY)),
        SimpleNamespace(num_layers=Called(__import__, "antigravity")),
    ],
    ids=["member", "deep", "class", "attribute", "state", "file-type", "simple"],
)
def test_a_member_of_the_arguments_that_would_be_called_is_refused_by_its_name(
    given: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"common.pt .*it names \w+\.\w+, which no checkpoint"):
        read_common(tmp_path, args=given)
    assert not CANARY.exists()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (["num_layers", 2], "list where names and values belong"),
        (({"num_layers": 2}, {"hidden_size": 4}), "tuple where names and values belong"),
        ("num_layers", "str where names and values belong"),
        ({f"a{number}": 1 for number in range(10_001)}, "10001 values, and no run has more"),
    ],
    ids=["list", "slots", "text", "many"],
)
def test_arguments_of_another_form_are_refused_by_file_and_field(
    state: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"common.pt cannot be read: .*its args: .*{words}"):
        read_common(tmp_path, args=Stated(state))


def test_values_that_are_not_plain_are_passed_over_and_the_others_are_told(tmp_path: Path) -> None:
    long = "x" * 10_001
    given: dict[Any, Any] = {
        "num_layers": 2,
        "hidden_size": float("nan"),
        "ffn_hidden_size": 1 << 4000,
        "norm_epsilon": float("inf"),
        "tokenizer": long,
        "name": "\ud800",
        "\udfff": 1,
        7: 1,
        "rotary_base": {"nested": [1]},
        "normalization": "RMSNorm",
        "swiglu": True,
        **{f"again{number}": long for number in range(9_000)},
    }
    found = read_common(tmp_path, args=Stated(given)).arguments
    assert found == {"num_layers": 2, "normalization": "RMSNorm", "swiglu": True}


@pytest.mark.parametrize(
    ("theirs", "shown"),
    [
        ("two", "num_layers two instead of 2"),
        (-1, "num_layers -1 instead of 2"),
        (1 << 61, f"num_layers {1 << 61} instead of 2"),
        ("\x1b[2J\u202e", "num_layers \u241b[2J<U+202E> instead of 2"),
        ("2" * 9_000, "num_layers 222"),
    ],
    ids=["text", "negative", "huge", "control", "long"],
)
def test_a_field_with_a_strange_value_is_told_as_a_terminal_may_show_it(
    theirs: Any, shown: str, tmp_path: Path
) -> None:
    arguments = read_common(tmp_path, args=argparse.Namespace(num_layers=theirs)).arguments
    model = describe_model(dict(families()["qwen3"].tiny), None, source="config.json")
    header = Header({}, arguments)
    with pytest.raises(ConfigError) as refused:
        check_header(tmp_path, header, model)
    assert shown in str(refused.value)
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 2_000


# ---- what an optimizer kept ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({"param_groups": [{"step": torch.tensor([1.0, 2.0])}]}, None),
        ({"param_groups": [{"step": -1}, {"step": float("nan")}, {"step": "9"}]}, None),
        ({"param_groups": [{"step": 1 << 80}], "common_step": [3]}, None),
        ({"param_groups": [{"step": 0.5}]}, None),
        ({"step": Called(torch._utils._rebuild_tensor_v2, 7, 0, (), ())}, "its optimizer: TypeE"),
    ],
    ids=["two", "strange", "huge", "half", "no-storage"],
)
def test_steps_that_cannot_be_are_none_or_refused_by_file_and_field(
    optimizer: Any, words: str | None, tmp_path: Path
) -> None:
    if words is None:
        assert read_common(tmp_path, optimizer=optimizer).steps is None
        return
    with pytest.raises(ConfigError, match=f"common.pt cannot be read: .*{words}"):
        read_raw(tmp_path, optimizer)


def read_raw(place: Path, optimizer: Any) -> Header:
    """As `read_common`, where torch would build the object before it writes it."""
    folder = whole_checkpoint(place / "kept")
    with zipfile.ZipFile(folder / "common.pt", "w") as archive:
        archive.writestr("common/data.pkl", pickle.dumps({"optimizer": optimizer}, 2))
    return read_header(place / "kept")


def test_a_state_of_lists_without_an_end_is_walked_once(tmp_path: Path) -> None:
    assert read_raw(tmp_path, laughs(3_000, 5)).steps == 1


def with_state(place: Path, shape: tuple[int, ...] = SHAPE) -> Path:
    """A checkpoint with a weight in one file, and what an optimizer kept for it in another."""
    folder = whole_checkpoint(place / "kept")
    torch.save(torch.ones(SHAPE), folder / STATE_FILE)
    tensors: dict[str, Any] = {}
    places = {}
    for key, whole, file in ((KEY, SHAPE, TENSOR), (STATE, shape, STATE_FILE)):
        tensors[key] = torch_format.TensorStorageMetadata(
            torch_format.TensorProperties(dtype=torch.float32),
            torch.Size(whole),
            [torch_format.ChunkStorageMetadata(torch.Size((0, 0)), torch.Size(SHAPE))],
        )
        at = torch_format.MetadataIndex(key, torch.Size((0, 0)))
        places[at] = _StorageInfo(file, 0, (folder / file).stat().st_size)
    described = torch_format.Metadata(tensors, storage_data=places)
    (folder / ".metadata").write_bytes(pickle.dumps(described))
    return folder


def removed(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (removed, f"names '{STATE_FILE}', and there is no such file in it, where {STATE}"),
        (linked, f"names '{STATE_FILE}', and there is no such file in it, where {STATE}"),
        (cut, f"{STATE_FILE} is cut short: {STATE} ends at byte"),
        (emptied, f"{STATE_FILE} is damaged: it has no tensor at byte 0, where {STATE}"),
    ],
)
def test_what_an_optimizer_kept_is_refused_by_file_and_field_and_the_weights_are_read(
    spoil: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    folder = with_state(tmp_path)
    spoil(folder / STATE_FILE)
    header = read_header(folder)
    assert header.tensors.keys() == {KEY}
    told = re.escape(words) + r".*; --no-load-optim takes the weights alone$"
    with pytest.raises(ConfigError, match=told):
        state_in(folder, header)


def test_state_of_another_shape_than_its_boxes_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = with_state(tmp_path, shape=(5, 3))
    words = re.escape(f"the boxes of {STATE} do not make up its (5, 3); --no-load-optim")
    with pytest.raises(ConfigError, match=words):
        state_in(folder, read_header(folder))
