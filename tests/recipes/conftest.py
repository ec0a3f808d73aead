from pathlib import Path

import pytest

from tests.recipes.copies import sound_copy


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one commit, with what ships."""
    return sound_copy(tmp_path_factory.mktemp("sound") / "repository")
