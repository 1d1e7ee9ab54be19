"""The route that keeps engines' own operators' paths from strangers, picker or no picker."""

from __future__ import annotations

import re

from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.config.route.v3 import DirectResponseAction, Route, RouteMatch
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher

from laar.protocol.answers import error_body
from laar.protocol.headers import REASON
from laar.protocol.paths import DENIED_PATHS, denied_path_error


def denied_route() -> Route:
    """Refuses `DENIED_PATHS`, also below another path."""
    error = denied_path_error()
    names = "|".join(re.escape(path.strip("/")) for path in DENIED_PATHS)
    return Route(
        match=RouteMatch(safe_regex=RegexMatcher(regex=f"(.*/)?({names})/?")),
        direct_response=DirectResponseAction(
            status=error.status, body=DataSource(inline_string=error_body(error).decode())
        ),
        response_headers_to_add=[
            HeaderValueOption(
                header=HeaderValue(key=key, value=value),
                append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for key, value in (
                ("content-type", "application/json"),
                (REASON, error.reason),
            )
        ],
    )
