"""The classes that the families here name: SGLang's own, under the name its registry looks for."""

import pkgutil

from agentrl.models.registry import families

__all__ = ["EntryClass"]

EntryClass = [
    pkgutil.resolve_name(family.engine_class)
    for family in families().values()
    if family.engine_class is not None
]
