"""The conventions between the picker and laar's own Envoys besides headers."""

from __future__ import annotations

ATTEMPTS = "xds.route_metadata.filter_metadata.laar.attempts"
"""Envoy attribute: how often this Envoy tries a request at most. Only laar's bootstraps have it."""

ATTEMPTED = "upstream.request_attempt_count"
"""Envoy attribute of an answer: how often the request was tried."""

ANSWERED_BY = "upstream.address"
"""Envoy attribute of an answer: the endpoint that it comes from, the last asked or an earlier."""

DETAILS = "response.code_details"
"""Envoy attribute of an answer: where its status comes from."""

FROM_ENDPOINT = "via_upstream"
"""`DETAILS` of an endpoint's own answer; any other was made by Envoy."""

LB_NAMESPACE = "envoy.lb"
"""Envoy metadata in which the picker names endpoints, and Envoy the one that served."""

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
"""Envoy metadata with the endpoints among which the picker may choose."""

DECISION_MARGIN_S = 10.0
"""Seconds of a decision beyond the longest hold before Envoy gives the picker up."""

PICKING_SERVICE = "laar.picking"
"""Name that laar's Envoys ask the health of: whether new streams are wanted."""
