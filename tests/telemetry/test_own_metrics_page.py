"""The metrics page: every line is well-formed, and series grow with endpoints and models only."""

import math
import random
from functools import partial

from prometheus_client.parser import text_string_to_metric_families

from laar.core.cost import CostWeights
from laar.core.decision import Completion, DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointTable, Reading
from laar.core.membership import EndpointSpec
from laar.core.request import Api, Request
from laar.policies import build_policies
from laar.prefix import PrefixIndex, PromptHasher
from laar.telemetry.metrics import Metrics
from laar.telemetry.prefix import prefix_families

ODD = 'a "quoted" \\ name\nwith a line'


def counting(models):
    table = EndpointTable()
    specs = [EndpointSpec(address=f"10.0.0.{i}:80", models=(m,)) for i, m in enumerate(models)]
    table.replace("test", specs)
    metrics = Metrics()
    metrics.director = Director(
        table,
        build_policies(CostWeights()),
        DirectorSettings(),
        rng=random.Random(1),
        on_decided=metrics.decided,
        on_settled=metrics.settled,
    )
    return metrics


def samples(metrics):
    found = {}
    for family in text_string_to_metric_families(metrics.page().decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_endpoints_are_shown_with_any_name_and_unknown_is_nan():
    metrics = counting([ODD, "plain"])
    metrics.director.table.read("10.0.0.1:80", Reading(waiting=3), 0.0)
    found = samples(metrics)
    odd = (("endpoint", "10.0.0.0:80"), ("model", ODD))
    plain = (("endpoint", "10.0.0.1:80"), ("model", "plain"))
    assert math.isnan(found["laar_endpoint_waiting", odd])
    assert found["laar_endpoint_waiting", plain] == 3.0
    assert found["laar_endpoint_in_flight", odd] == 0.0


def test_labels_follow_the_endpoints():
    metrics = counting(["a"])
    assert ("laar_endpoint_in_flight", (("endpoint", "10.0.0.0:80"), ("model", "a"))) in samples(
        metrics
    )
    metrics.director.table.replace("test", [EndpointSpec(address="[::1]:80", models=("b",))])
    addresses = {dict(labels).get("endpoint") for _, labels in samples(metrics)} - {None}
    assert addresses == {"[::1]:80"}


def test_what_clients_send_makes_no_series():
    metrics = counting(["a", "b"])
    director = metrics.director

    def ask(i):
        request = Request(
            id=f"id-{i}",
            api=Api.CHAT,
            model="auto",
            task=f"task-{i}",
            policy=f"policy-{i}",
            session=f"session-{i}",
            tenant=f"tenant-{i}",
            tried=f"model-{i}",
        )
        end = Completion(status=200 + i % 3, cause="complete", latency_s=1.0)
        director.settle(director.decide(request, 0.0), end)

    for i in range(60):
        ask(i)
    before = set(samples(metrics))
    for i in range(60, 400):
        ask(i)
    assert set(samples(metrics)) == before


def test_the_page_shows_the_memory_of_the_prefix_index_and_what_left_it():
    index, hasher = PrefixIndex(1, max_bytes=1 << 20), PromptHasher(b"k" * 16)
    metrics = Metrics()
    metrics.add(partial(prefix_families, index.stats))
    text = random.Random(1).randbytes(20_000).hex()
    index.set_capacity(0, 30_000)
    index.insert(0, hasher.chain((text,)))
    found = samples(metrics)
    assert 0 < found["laar_prefix_index_bytes", ()] < 1 << 20
    gone = {
        dict(labels)["cause"]: value
        for (name, labels), value in found.items()
        if name == "laar_prefix_blocks_forgotten_total"
    }
    assert gone["capacity"] > 0
    assert (gone["memory"], gone["disproved"]) == (0.0, 0.0)


def test_every_family_on_the_page_is_among_the_documented_ones():
    metrics = counting(["a"])
    documented = {family.name for family in metrics.families()}
    shown = {f.name for f in text_string_to_metric_families(metrics.page().decode())}
    assert shown == documented
