"""SGLang's settings of each group of engines: those of all engines, with a group's own over them.

A file of slime's may say what SGLang called otherwise, or what is already so here: both are taken
as on the command line.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from agentrl.config import answers
from agentrl.config.engine_groups import PLACEHOLDER, EngineGroup, groups_of_file
from agentrl.config.passthrough import check_key, convert, family_of, spelled
from agentrl.config.renames import setting_of_today
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = ["FILE", "own_settings", "way_of", "ways_of_groups"]

FILE = "--sglang-config"


def ways_of_groups(config: RunConfig) -> list[tuple[str, RunConfig]]:
    """For each group of a file where it stands, and the flags as they hold for its engines; of a
    run without a file those of the run. Groups whose settings cannot be read are left out."""
    if not config.sglang_config:
        return [("", config)]
    found = []
    for group in groups_of_file(config.sglang_config, config.rollout_num_gpus_per_engine):
        if group.kind == PLACEHOLDER:
            continue
        with suppress(ConfigError):
            found.append((f"{FILE}: {group.place}", way_of(config, group)))
    return found


def way_of(config: RunConfig, group: EngineGroup) -> RunConfig:
    """The flags as they hold for the engines of a group. Raises ConfigError for a setting that
    cannot be."""
    sglang = {**config.sglang, **own_settings(group.overrides)}
    return msgspec.structs.replace(config, sglang=sglang, rollout_num_gpus_per_engine=group.size)


def own_settings(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The SGLang settings of a group under the names of today, without what is already so. Raises
    ConfigError for one that cannot be."""
    found: dict[str, Any] = {}
    for name, value in overrides.items():
        known = answers.row_of(spelled("sglang", str(name)))
        key = str(name)
        if known is not None and known[1].renamed:
            today = setting_of_today(known[1], value)
            if today is None:
                continue
            key, value = family_of(today[0])[1], today[1]
        key = check_key("sglang", key, "overrides")
        value = convert("sglang", key, value)
        if known is None or known[1].renamed or known[1].state != "noted":
            found[key] = value
    return found
