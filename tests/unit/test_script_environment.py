"""The variables that a launch script sets for its program, and what explain-flags says of them."""

from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.config.env_vars import about_env_vars
from agentrl.config.launch_script import LaunchScript, read_script
from agentrl.config.run import RunConfig

pytestmark = pytest.mark.slow

#: As slime's scripts begin and end.
_SCRIPT = """\
pkill -9 python
export PYTHONUNBUFFERED=1 WANDB_API_KEY=not-to-be-seen
export MASTER_ADDR=${MASTER_ADDR:-"127.0.0.1"}
NCCL_DEBUG='a b'
export NCCL_DEBUG
if nvlink; then HAS_NVLINK=1; else HAS_NVLINK=0; fi
ray start --head --node-ip-address ${MASTER_ADDR}
RUNTIME_ENV_JSON="{
  \\"env_vars\\": {
    \\"PYTHONPATH\\": \\"/root/Megatron-LM/:$HERE_OF_NOBODY\\",
    \\"CUDA_DEVICE_MAX_CONNECTIONS\\": \\"1\\",
    \\"NCCL_NVLS_ENABLE\\": \\"${HAS_NVLINK}\\",
    \\"LAYOUT\\": \\"x$HAS_NVLINK y\\"
  }
}"
ray job submit --address="http://127.0.0.1:8265" \\
   --runtime-env-json="${RUNTIME_ENV_JSON}" \\
   -- python3 train.py --seed 3
"""


def read(folder: Path, text: str) -> LaunchScript:
    (folder / "run.sh").write_text(text)
    return read_script(folder / "run.sh")


def words(folder: Path, text: str) -> list[str]:
    return [word.text for word in read(folder, text).environment.values()]


def test_explain_flags_names_the_variables_of_a_script_with_the_flag_that_passes_them_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path, _SCRIPT)
    assert main(["explain-flags", str(tmp_path / "run.sh")]) == 0
    page = capsys.readouterr().out
    names = "PYTHONUNBUFFERED, WANDB_API_KEY, MASTER_ADDR, NCCL_DEBUG, PYTHONPATH, "
    names += "CUDA_DEVICE_MAX_CONNECTIONS, NCCL_NVLS_ENABLE, LAYOUT"
    assert f"environment: the script sets {names}; the line to run does not:" in page
    given = "PYTHONUNBUFFERED=1 WANDB_API_KEY 'NCCL_DEBUG=a b' CUDA_DEVICE_MAX_CONNECTIONS=1 "
    given += "LAYOUT=x\"$HAS_NVLINK\"' y'"
    assert f"    --env-vars {given} gives them to every process of the run" in page
    assert "    PYTHONPATH: Megatron is an installed package here" in page
    assert "    NCCL_NVLS_ENABLE: learner and engines must agree on it" in page
    assert "    MASTER_ADDR: the run sets it itself" in page
    assert "not-to-be-seen" not in page


def test_a_variable_that_is_passed_on_already_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path, "export A=1 B=2\npython3 train.py --env-vars A=1 B\n")
    main(["explain-flags", str(tmp_path / "run.sh")])
    assert "environment:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\npython3 train.py", []),
        ("A=1 python3 train.py", ["A=1"]),
        ("A=$NOBODY python3 train.py", ["A"]),
        ("export A=1\nA=2\npython3 train.py\nexport B=1", ["A=2"]),
        ("export A\npython3 train.py", ["A"]),
        ("export A=(1 2)\npython3 train.py", ["A"]),
        ("if x; then export A=1; fi\npython3 train.py", ["A"]),
        ("""export A=1\nray job submit --runtime-env-json '{"env_vars": {"A": 2}}' -- \\
            python3 train.py""", ["A=2"]),
        ("""ray job submit --runtime-env-json='{"working_dir": "."}' -- python train.py""", []),
        ("""ray job submit --runtime-env-json='{"env_vars": {"a b": 1}}' -- python train.py""", []),
    ],
)  # fmt: skip
def test_what_a_program_finds_in_its_environment_is_read(
    text: str, expected: list[str], tmp_path: Path
) -> None:
    found = read(tmp_path, f"{text}\n")
    assert [word.text for word in found.environment.values()] == expected
    config = RunConfig(env_vars=[word for word in expected if "=" in word])
    assert list(about_env_vars(config)) == []


@pytest.mark.parametrize("json", ["'{broken'", "$NOBODY", "'[1]'", "'{\"env_vars\": 3}'"])
def test_an_environment_that_is_no_json_is_told(json: str, tmp_path: Path) -> None:
    text = f"ray job submit --runtime-env-json {json} -- python3 train.py --seed 3\n"
    found = read(tmp_path, text)
    assert found.environment == {}
    assert f"{tmp_path}/run.sh:1: --runtime-env-json is not read: it is no JSON object" in (
        found.unknown
    )
    assert found.argv == ["--seed", "3"]
