"""Where a run computes: the decision over facts, and what is asked of this host."""

from pathlib import Path

import pytest

from agentrl.cli import train
from agentrl.cli.doctor import examine
from agentrl.config.device import DeviceFacts, choose_device, choose_here, this_host
from agentrl.config.device_probe import probe
from agentrl.config.plan import describe
from agentrl.config.resolve import parse
from agentrl.errors import EnvironmentSetupError

INSTALL = "--device cuda needs pip install .[gpu]"
DRIVER = (
    "--device cuda needs a driver that is new enough for CUDA 13.0 (see nvidia-smi), and a "
    "CUDA_VISIBLE_DEVICES that shows one"
)
LOCKED = ("sgl_kernel", "triton")
NO_GPU = DeviceFacts("this host", 0, torch="2.13.0+cpu", missing=LOCKED)
LOCK_ON_A_GPU_HOST = DeviceFacts("Ray", 1, torch="2.13.0+cpu", missing=LOCKED)
TORCH_OF_PYPI = DeviceFacts("this host", 2, torch="2.13.0", missing=("sgl_kernel",))
OLD_DRIVER = DeviceFacts("this host", 2, torch="2.13.0", cuda="13.0", missing=("sgl_kernel",))
OLD_KERNELS = DeviceFacts("Ray", 8, "2.13.0", "13.0", num_usable=1, missing=("sgl_kernel",))
NO_TORCH = DeviceFacts("Ray", 4)
GPU_HOST = DeviceFacts("Ray", 8, torch="2.13.0", cuda="13.0", num_usable=1)

needs_no_gpu = pytest.mark.skipif(
    choose_device("auto", this_host()).device == "cuda", reason="this host can run on CUDA"
)

SAID = [
    (NO_GPU, "cpu: this host has no GPU"),
    (LOCK_ON_A_GPU_HOST, f"cpu: Ray sees 1 GPU, but torch 2.13.0+cpu has no CUDA; {INSTALL}"),
    (TORCH_OF_PYPI, f"cpu: this host has 2 GPUs, but sgl_kernel cannot be imported; {INSTALL}"),
    (OLD_DRIVER, f"cpu: this host has 2 GPUs, but torch 2.13.0 can use none; {DRIVER}"),
    (OLD_KERNELS, f"cpu: Ray sees 8 GPUs, but sgl_kernel cannot be imported; {INSTALL}"),
    (NO_TORCH, f"cpu: Ray sees 4 GPUs, but torch cannot be imported; {INSTALL}"),
    (GPU_HOST, "cuda: Ray sees 8 GPUs, torch 2.13.0 has CUDA 13.0"),
]


@pytest.mark.parametrize(("facts", "said"), SAID)
def test_auto_takes_gpus_that_torch_and_sglang_can_use_and_says_why(
    facts: DeviceFacts, said: str
) -> None:
    assert str(choose_device("auto", facts)) == f"device {said}"


@pytest.mark.parametrize("facts", [NO_GPU, LOCK_ON_A_GPU_HOST, TORCH_OF_PYPI, OLD_DRIVER])
def test_cuda_is_refused_where_it_cannot_be(facts: DeviceFacts) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"^--device cuda: .*; or give --device cpu$"):
        choose_device("cuda", facts)


def test_cpu_is_taken_on_a_host_with_gpus_too() -> None:
    assert choose_device("cuda", GPU_HOST).device == "cuda"
    assert choose_device("cpu", GPU_HOST).device == "cpu"


def test_a_host_is_not_looked_at_for_the_cpu() -> None:
    """Where the GPU packages are installed a look imports all of them."""

    def look() -> DeviceFacts:
        raise AssertionError("it was looked at")

    assert str(choose_here("cpu", look)) == "device cpu: as it was set (--device)"
    assert str(choose_here("auto", lambda: NO_GPU)) == "device cpu: this host has no GPU"


@needs_no_gpu
def test_a_run_of_this_host_knows_its_device_before_anything_starts() -> None:
    resolved = parse([], "train_async")
    assert resolved.config.device == "cpu"
    assert str(choose_device("auto", this_host())) in resolved.notes
    assert "all of it runs on the CPU of this host" in describe(resolved.config)


def test_a_run_that_joins_a_cluster_leaves_the_choice_to_what_is_there() -> None:
    config = parse(["--ray-address", "10.0.0.1:6379"], "train_async").config
    assert config.device == "auto"
    assert "if it has any that torch and SGLang can use there" in describe(config)
    chosen = parse(["--ray-address", "10.0.0.1:6379", "--device", "cpu"], "train_async")
    assert "all of it runs on the CPU of the cluster at 10.0.0.1:6379" in describe(chosen.config)


@needs_no_gpu
def test_cuda_on_a_host_that_has_none_ends_before_a_run_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main(["--device", "cuda"], "train_async") == 3
    assert "train_async: --device cuda: this host has" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_says_which_device_a_run_would_take(tmp_path: Path) -> None:
    found = {finding.name: finding for finding in examine(tmp_path)}["device"]
    assert found.good
    assert found.detail.startswith(str(choose_device("auto", this_host()))[len("device ") :])


def test_the_probe_tells_what_it_could_import() -> None:
    import torch

    facts = probe(["msgspec", "no_such_package"])
    assert facts.missing == ("no_such_package",)
    assert facts.torch == torch.__version__
    assert facts.cuda == (torch.version.cuda or "")
