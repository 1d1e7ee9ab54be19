"""Policies as given on a command line."""

from __future__ import annotations

from laar.core.cost import CostWeights
from laar.errors import SettingError
from laar.policies import build_policies


def parse_policy(text: str) -> tuple[str, dict[str, object]]:
    """Parse a policy as given on a command line: `name`, or `name:parameter=value,...`.

    Raises:
        SettingError: as in `build_policies`, or a part does not have that form.
    """
    name, _, rest = text.partition(":")
    values: dict[str, object] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise SettingError(f"policy `{text}`: `{part}` is not of the form parameter=value")
        try:
            values[key.strip()] = float(value)
        except ValueError:
            values[key.strip()] = value.strip()
    build_policies(CostWeights(), {name: values})
    return name, values
