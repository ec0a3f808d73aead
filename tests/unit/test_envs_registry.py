import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl import Env, rollout
from agentrl.envs import known_envs, load_env, register
from agentrl.envs import registry as registry_module
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.errors import ConfigError

ENV_SOURCE = "from agentrl import Env\n\nclass MyEnv(Env):\n    pass\n\nNOT_AN_ENV = 3\n"
Plugin = Callable[[str, str, str], None]


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    """Forget what a test registers."""
    before = dict(registry_module._registered)
    yield
    registry_module._registered.clear()
    registry_module._registered.update(before)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """Installs a package with one entry point: (package, entry point name, source of its module).

    A real installation as the import system sees it: a module and its dist-info on sys.path.
    """
    monkeypatch.syspath_prepend(tmp_path)
    installed: list[str] = []

    def install(package: str, name: str, source: str) -> None:
        module = f"{package}_module"
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\n", encoding="utf-8")
        points = f"[agentrl.envs]\n{name} = {module}:MyEnv\n"
        (info / "entry_points.txt").write_text(points, encoding="utf-8")
        importlib.invalidate_caches()
        installed.append(module)

    yield install
    for module in installed:
        sys.modules.pop(module, None)


def make(name: str, module: str) -> type[Env]:
    return type(name, (Env,), {"__module__": module})


def test_a_registered_env_is_loaded_by_name() -> None:
    cls = register("lab/search-v2")(make("Search", "mine"))
    assert load_env("lab/search-v2") is cls
    assert "lab/search-v2" in known_envs()


def test_a_second_claim_on_a_name_is_refused_and_names_both() -> None:
    register("search-x")(make("Search", "mine"))
    with pytest.raises(ConfigError, match="registered by mine:Search and by yours:Other"):
        register("search-x")(make("Other", "yours"))


def test_a_reloaded_class_replaces_itself() -> None:
    register("search-x")(make("Search", "mine"))
    again = register("search-x")(make("Search", "mine"))
    assert load_env("search-x") is again


@pytest.mark.parametrize("name", ["", "Search", "a b", "a/b/c", "/a", "a:b"])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no environment name"):
        register(name)


def test_single_turn_ships_with_agentrl() -> None:
    assert load_env("single-turn") is SingleTurnEnv


def test_an_unknown_name_gets_near_misses() -> None:
    with pytest.raises(ConfigError, match="no environment 'singel-turn'; did you mean 'single-tu"):
        load_env("singel-turn")
    with pytest.raises(ConfigError, match=r"no environment 'zzz'; known: .*single-turn"):
        load_env("zzz")


def test_a_plugin_is_found_by_its_entry_point(plugin: Plugin) -> None:
    plugin("goodpkg", "good-env", ENV_SOURCE)
    assert "goodpkg_module" not in sys.modules
    assert load_env("good-env").__name__ == "MyEnv"


def test_a_broken_plugin_is_named_and_breaks_no_other(plugin: Plugin) -> None:
    plugin("badpkg", "bad-env", "raise RuntimeError('boom')\n")
    plugin("goodpkg", "good-env", ENV_SOURCE)
    assert {"bad-env", "good-env"} <= set(known_envs())
    load_env("good-env")
    assert "badpkg_module" not in sys.modules
    with pytest.raises(
        ConfigError, match=r"'bad-env' of badpkg .* is broken: .*RuntimeError: boom"
    ):
        load_env("bad-env")


@pytest.mark.parametrize("name", ["same-env", "single-turn"])
def test_two_claims_on_a_name_are_both_refused(plugin: Plugin, name: str) -> None:
    plugin("onepkg", name, ENV_SOURCE)
    plugin("twopkg", name, ENV_SOURCE)
    with pytest.raises(ConfigError, match=r"claimed by .*onepkg.*say which with --env") as caught:
        load_env(name)
    assert "twopkg" in str(caught.value)
    assert ("agentrl and by" in str(caught.value)) == (name == "single-turn")


def test_a_class_is_loaded_from_a_module(plugin: Plugin) -> None:
    plugin("goodpkg", "good-env", ENV_SOURCE)
    assert load_env("goodpkg_module:MyEnv") is load_env("good-env")


def test_a_class_is_loaded_from_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "my_env.py"
    path.write_text(ENV_SOURCE, encoding="utf-8")
    cls = load_env(f"{path}:MyEnv")
    assert issubclass(cls, Env)
    assert load_env(f"{path}:MyEnv") is cls


def test_a_plugin_that_registers_itself_makes_one_claim(plugin: Plugin) -> None:
    source = "from agentrl import Env, register\n@register('own-env')\nclass MyEnv(Env): ...\n"
    plugin("ownpkg", "own-env", source)
    assert load_env("own-env") is load_env("own-env")


def test_a_registered_env_clashes_with_an_announced_one(plugin: Plugin) -> None:
    plugin("goodpkg", "good-env", ENV_SOURCE)
    register("good-env")(make("Mine", "mine"))
    with pytest.raises(ConfigError, match=r"claimed by goodpkg .* and by mine:Mine"):
        load_env("good-env")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{dir}/none.py:MyEnv", "there is no file"),
        ("{dir}/env.py:MyEmv", "has no 'MyEmv'; did you mean 'MyEnv'"),
        ("{dir}/env.py:NOT_AN_ENV", "not a subclass of agentrl.Env"),
        ("{dir}/env.py:Env", "not a subclass of agentrl.Env"),
        ("{dir}/broken.py:MyEnv", r"cannot import .*NameError: .* \(\S*broken.py:1\)"),
        ("{dir}/exits.py", r"cannot import .*SystemExit: 3 \(\S*exits.py:2\)"),
        (
            "{dir}/two.py",
            r"two.py defines 2 environments, First, Second; say which: --env .*:First",
        ),
        ("{dir}/importer.py", "importer.py defines no environment; write `class Name"),
        ("no.such.module:MyEnv", "cannot import no.such.module: ModuleNotFoundError"),
        (":MyEnv", "cannot import"),
        ("agentrl.envs:", "has no ''"),
    ],
)
def test_what_cannot_be_loaded_is_a_config_error(tmp_path: Path, spec: str, message: str) -> None:
    (tmp_path / "env.py").write_text(ENV_SOURCE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("nonsense\n", encoding="utf-8")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    two = "from agentrl import Env\nclass First(Env): ...\nclass Second(First): ...\n"
    (tmp_path / "two.py").write_text(two, encoding="utf-8")
    importer = "from agentrl import Env\nfrom agentrl.envs.single_turn import SingleTurnEnv\n"
    (tmp_path / "importer.py").write_text(importer, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_env(spec.format(dir=tmp_path))


def test_a_file_that_defines_one_env_needs_no_class(tmp_path: Path) -> None:
    path = tmp_path / "my_env.py"
    imported = "from agentrl.envs.single_turn import SingleTurnEnv\n"
    path.write_text(f"{imported}{ENV_SOURCE}Alias = MyEnv\n", encoding="utf-8")
    cls = load_env(str(path))
    assert cls.__name__ == "MyEnv"
    assert load_env(f"{path}:MyEnv") is cls


def test_a_name_without_its_suffix_is_pointed_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calc.py").write_text(ENV_SOURCE, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"no environment 'calc'; did you mean 'calc.py'\?"):
        load_env("calc")


@pytest.mark.parametrize("decorator", [register, rollout])
def test_a_decorator_without_its_parentheses_says_so(decorator: Any) -> None:
    with pytest.raises(ConfigError, match=r"stands above \w+ without a name; write `@\w+\("):

        @decorator
        class Searching(Env):
            pass
