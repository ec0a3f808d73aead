"""MLflow and SwanLab as their packages are: `tracker_packages.py`, where these are installed."""

from pathlib import Path

import pytest

from tests.over import play_over

TESTS = Path(__file__).with_name("tracker_packages.py")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["mlflow", "swanlab"])
def test_a_run_is_tracked_by_the_package_itself(name: str) -> None:
    play_over("trackers", str(TESTS), "-k", name)
