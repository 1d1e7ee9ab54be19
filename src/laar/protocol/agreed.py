"""Conventions between the picker and laar's own Envoys, other than headers."""

from __future__ import annotations

ATTEMPTS = "xds.route_metadata.filter_metadata.laar.attempts"
"""Envoy attribute: maximum attempts of this Envoy per request. Only laar's bootstraps set it."""

ATTEMPTED = "upstream.request_attempt_count"
"""Envoy attribute of an answer: number of attempts made."""

ANSWERED_BY = "upstream.address"
"""Envoy attribute of an answer: the endpoint that sent it, not always the last tried."""

DETAILS = "response.code_details"
"""Envoy attribute of an answer: source of its status."""

FROM_ENDPOINT = "via_upstream"
"""`DETAILS` of an endpoint's own answer; any other was made by Envoy."""

LB_NAMESPACE = "envoy.lb"
"""Envoy metadata where the picker names endpoints and Envoy reports the one that served."""

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
"""Envoy metadata that lists the endpoints the picker may choose from."""

DECISION_MARGIN_S = 10.0
"""Seconds beyond the longest hold after which Envoy gives up on the picker's decision."""

PICKING_SERVICE = "laar.picking"
"""Health service name that laar's Envoys query to learn whether the picker takes new streams."""
