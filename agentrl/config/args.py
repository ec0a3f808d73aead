"""`Args`: the flags of a run, and what `--custom-config-path` adds, as the functions of slime's
users expect them."""

from collections.abc import Callable
from typing import Any

from agentrl.config.run import RunConfig

__all__ = ["Args"]


#: Flags that nobody has to give, and that have a value all the same once a script of slime's runs.
_SETTLED: dict[str, Callable[[RunConfig], Any]] = {
    "rollout_num_gpus": lambda cfg: sum(group.num_gpus for group in cfg.engine_groups),
    "eps_clip_high": lambda cfg: cfg.eps_clip,
    "label_key": lambda cfg: "label",
}


class Args:
    """The flags of a run as attributes, by the names that slime keeps them under; and the names of
    `--custom-config-path`."""

    def __init__(self, cfg: RunConfig | None) -> None:
        self._cfg = cfg

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look for methods before there is a configuration
            raise AttributeError(name)
        if self._cfg is None:
            raise AttributeError(
                f"args has no {name!r} here: an environment that is played outside of a run knows "
                "no flags of one"
            )
        if name in RunConfig.__struct_fields__:
            value = getattr(self._cfg, name)
            return _SETTLED[name](self._cfg) if value is None and name in _SETTLED else value
        if (switch := f"disable_{name}") in RunConfig.__struct_fields__:
            return not getattr(self._cfg, switch)
        if name in self._cfg.custom_config_path:
            return self._cfg.custom_config_path[name]
        raise AttributeError(
            f"args has no {name!r}: it holds the flags of this run, and there is no such flag; "
            "write the value into your file, or name and value into one of --custom-config-path"
        )
