"""The findings of `laar doctor` on Envoy's configuration."""

import copy
import functools
import json
import re

import pytest

from laar.doctor.envoy import configuration, envoy_findings
from laar.doctor.findings import Level
from laar.envoy.options import BootstrapOptions
from support.bootstraps import rendered

NEEDS = BootstrapOptions()
SHAPES = ("sidecar", "standalone", "gateway")


def wanted(config, options=NEEDS):
    """Return the values that the findings advise, by field."""
    found = [finding.remedy for finding in envoy_findings(config, options) if finding.remedy]
    parts = [remedy.removeprefix("set ").partition(": ") for remedy in found]
    assert len({field for field, _, _ in parts}) == len(parts)
    return {field: value for field, _, value in parts}


def manager(bootstrap):
    chain = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]
    return chain["filters"][0]["typed_config"]


def processor(bootstrap):
    filters = manager(bootstrap)["http_filters"]
    return next(of for of in filters if of["name"].endswith("ext_proc"))["typed_config"]


def route(bootstrap):
    return manager(bootstrap)["route_config"]["virtual_hosts"][0]["routes"][-1]["route"]


def cluster(bootstrap, name):
    clusters = bootstrap["static_resources"]["clusters"]
    return next(c for c in clusters if c["name"] == name)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_bootstraps_of_laar_envoy_have_no_errors(shape):
    (finding,) = envoy_findings(rendered(shape, BootstrapOptions()), NEEDS)
    assert finding.level is Level.OK


def host(bootstrap):
    *_, collecting = bootstrap["static_resources"]["listeners"]
    found = collecting["filter_chains"][0]["filters"][0]["typed_config"]
    return found["route_config"]["virtual_hosts"][0]


def picker(bootstrap):
    return cluster(bootstrap, "laar-picker")


def endpoints(bootstrap):
    return cluster(bootstrap, "laar-endpoints")


def override(bootstrap):
    (policy,) = endpoints(bootstrap)["load_balancing_policy"]["policies"]
    return policy["typed_extension_config"]["typed_config"]


LEAST_REQUEST = {"policies": [{"name": "envoy.load_balancing_policies.least_request"}]}
TCP_CHECK = {"timeout": "2s", "interval": "1s", "tcp_health_check": {}}


@pytest.mark.parametrize(
    ("part", "field", "value"),  # None: the field is absent
    [
        (processor, "message_timeout", None),
        (processor, "max_message_timeout", None),
        (processor, "processing_mode.request_body_mode", "STREAMED"),
        (processor, "processing_mode.response_body_mode", "BUFFERED"),
        (processor, "processing_mode.response_header_mode", "SKIP"),
        (processor, "request_attributes", ["request.path"]),
        (processor, "response_attributes", ["response.code_details"]),
        (processor, "metadata_options.forwarding_namespaces.untyped", None),
        (processor, "metadata_options.receiving_namespaces.untyped", ["other"]),
        (processor, "allow_mode_override", None),
        (processor, "failure_mode_allow", False),
        (processor, "observability_mode", True),
        (processor, "disable_immediate_response", True),
        (host, "request_body_buffer_limit", None),
        (route, "timeout", None),
        (route, "idle_timeout", "30s"),
        (route, "retry_policy", None),
        (picker, "typed_extension_protocol_options", None),
        (picker, "health_checks", [TCP_CHECK]),
        (picker, "circuit_breakers.thresholds", None),
        (picker, "common_lb_config.healthy_panic_threshold", None),
        (endpoints, "load_balancing_policy", None),
        (override, "fallback_policy", LEAST_REQUEST),
        (override, "selected_host_key", None),
    ],
)
def test_each_error_is_found_with_its_fix(part, field, value):
    broken = copy.deepcopy(rendered("standalone", BootstrapOptions()))
    processor(broken)["stat_prefix"] = "another"  # so that it is to fail open
    *above, name = field.split(".")
    found = functools.reduce(dict.__getitem__, above, part(broken))
    found.pop(name, None)
    if value is not None:
        found[name] = value
    before = copy.deepcopy(broken)
    (finding,) = envoy_findings(configuration(broken), NEEDS)
    assert re.match(rf"set (load_balancing_policy\.)?{re.escape(field)}: ", finding.remedy)
    assert finding.what
    assert broken == before, "the given document must not change"


@pytest.mark.parametrize("options", [{"auto_config": {}}, {"explicit_http_config": {}}, {}])
def test_http_2_to_the_picker_may_be_configured_in_several_ways(options):
    broken = rendered("sidecar", BootstrapOptions())
    picker = cluster(broken, "laar-picker")
    (kind,) = picker["typed_extension_protocol_options"]
    kept = {"common_http_protocol_options": {"idle_timeout": "5s"}}
    picker["typed_extension_protocol_options"][kind] = {**options, **kept}
    found = wanted(broken)
    assert [*found] == ([] if "auto_config" in options else ["typed_extension_protocol_options"])
    for value in found.values():
        assert json.loads(value)[kind].items() >= kept.items(), "the other options must stay"
    picker["http2_protocol_options"] = {}  # as in older configurations
    assert not wanted(broken)


def test_the_clusters_of_a_weighted_route_are_checked():
    broken = rendered("sidecar", BootstrapOptions())
    (host,) = manager(broken)["route_config"]["virtual_hosts"]
    for each in host["routes"]:
        if each.get("route", {}).get("cluster") == "laar-endpoints":
            name = each["route"].pop("cluster")
            each["route"]["weighted_clusters"] = {"clusters": [{"name": name, "weight": 1}]}
    cluster(broken, "laar-endpoints").pop("load_balancing_policy")
    assert [*wanted(broken)] == ["load_balancing_policy"]


DESTINATION = "x-gateway-destination-endpoint"


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION}}, 0),
        ({"original_dst_lb_config": {"use_http_header": True}}, 1),
        ({"lb_subset_config": {"subset_selectors": [{"keys": [DESTINATION]}]}}, 0),
        ({"lb_subset_config": {"subset_selectors": [{"keys": ["version"]}]}}, 1),
    ],
)
def test_a_cluster_may_read_the_destination_in_several_ways(part, found):
    config = rendered("full-duplex", BootstrapOptions())
    endpoints = cluster(config, "laar-endpoints")
    endpoints.pop("load_balancing_policy")
    endpoints |= part
    assert [*wanted(config)] == ["load_balancing_policy"] * found


def test_full_duplex_needs_trailers_and_bodies_both_ways_and_no_buffer():
    broken = rendered("full-duplex", BootstrapOptions(max_body_bytes=1024))
    processor(broken)["processing_mode"].pop("response_body_mode")
    processor(broken)["processing_mode"]["request_trailer_mode"] = "SKIP"
    assert wanted(broken).keys() == {
        "processing_mode.response_body_mode",
        "processing_mode.request_trailer_mode",
    }


def test_settings_determine_the_limits_and_timeouts_of_envoy():
    needs = BootstrapOptions(max_body_bytes=64 << 20, longest_hold_s=690.0)
    found = wanted(rendered("standalone", BootstrapOptions()), needs)
    limit = f"{64 << 20}"
    assert found == {"max_message_timeout": "700s", "request_body_buffer_limit": limit}


def test_an_envoy_that_waits_too_long_for_a_hung_picker_gets_a_warning():
    broken = rendered("standalone", BootstrapOptions())
    processor(broken)["message_timeout"] = "60s"
    (finding,) = envoy_findings(broken, NEEDS)
    assert (finding.level, finding.remedy) == (Level.WARNING, "set message_timeout: 1.8s")


def test_an_envoy_must_trust_the_cas_of_all_endpoints():
    good = rendered("standalone", BootstrapOptions(endpoint_cas=("/a.pem",)))
    assert not wanted(good, BootstrapOptions(endpoint_cas=("/a.pem",)))
    (finding,) = envoy_findings(good, BootstrapOptions(endpoint_cas=("/a.pem", "/b.pem")))
    assert finding.remedy.startswith("set transport_socket_matches: ")
    assert "/b.pem" in finding.what


def test_an_envoy_without_the_filter_gets_a_hint_on_how_to_start():
    bare = rendered("standalone", BootstrapOptions())
    manager(bare)["http_filters"].pop(1)
    (finding,) = envoy_findings(bare, NEEDS)
    assert finding.level is Level.ERROR
    assert "laar envoy --shape" in finding.remedy


def test_configuration_received_by_xds_is_read_too():
    bootstrap = rendered("standalone", BootstrapOptions())
    resources = bootstrap.pop("static_resources")
    listener = resources["listeners"][0]
    table = manager({"static_resources": resources}).pop("route_config") | {"name": "t"}
    manager({"static_resources": resources})["rds"] = {"route_config_name": "t"}
    table["virtual_hosts"][0]["request_body_buffer_limit"] = NEEDS.max_body_bytes
    table["virtual_hosts"][0]["routes"][-1]["route"].pop("timeout")
    kind = "type.googleapis.com/envoy.admin.v3."
    dump = {
        "configs": [
            {"@type": f"{kind}BootstrapConfigDump", "bootstrap": {}},
            {"dynamic_active_clusters": [{"cluster": c} for c in resources["clusters"]]},
            {"dynamic_listeners": [{"active_state": {"listener": listener}}, {"name": "warming"}]},
            {"dynamic_route_configs": [{"route_config": table}]},
        ]
    }
    (finding,) = envoy_findings(configuration(dump), NEEDS)
    assert finding.remedy == "set timeout: 3600s"
