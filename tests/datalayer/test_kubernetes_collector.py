from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from laar.datalayer.kubernetes import api as api_module
from laar.datalayer.kubernetes import collector as collector_module
from laar.datalayer.kubernetes import mirror as mirror_module
from laar.datalayer.kubernetes.api import ApiAccess, in_cluster
from laar.datalayer.kubernetes.collector import KubernetesEndpoints
from laar.datalayer.kubernetes.resources import OBJECTIVES, PODS, POOLS, REWRITES
from laar.datalayer.kubernetes.settings import KubernetesSource
from laar.errors import SettingError
from laar.protocol.rules import GatewayRules
from support.kube_api_server import KubeApiServer, pod, pool

VLLM = KubernetesSource(selector={"app": "vllm"}, ports=(8000,))
SOURCE = "kubernetes ml/app=vllm"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(mirror_module, "LAST_WAIT_S", 0.05)
    monkeypatch.setattr(collector_module, "SETTLE_S", 0.0)


@pytest.fixture
def sink(recorder: Any) -> Any:
    recorder.priorities = {}
    recorder.rules = ()
    recorder.objectives = lambda source, _, priorities: recorder.priorities.update(
        {source: dict(priorities)}
    )

    def rewrites(_: str, __: str, rules: Any) -> None:
        recorder.rules = rules

    recorder.rewrites = rewrites
    return recorder


def target_of(rules: Any) -> str | None:
    gateway = GatewayRules(random.Random(1))
    gateway.replace_rewrites("source", "fleet", rules)
    return gateway.rewrite("v1", "fleet")


@pytest.fixture
async def cluster(serve: Any, start: Any, sink: Any) -> Any:
    """Yield an API server; `cluster.follow(source)` starts a collector for it."""
    server = KubeApiServer()
    server.url = "http://" + await serve(server.handle)  # type: ignore[attr-defined]

    def follow(source: KubernetesSource, **access: Any) -> KubernetesEndpoints:
        collector = KubernetesEndpoints(
            ApiAccess(url=server.url, namespace="ml", **access),  # type: ignore[attr-defined]
            sink,
            source,
        )
        start(collector.run())
        return collector

    server.follow = follow  # type: ignore[attr-defined]
    yield server
    server.disconnect()


async def test_watches_that_end_at_once_are_reported_and_replaced_by_lists(
    cluster: Any, sink: Any, until: Any
) -> None:
    watch = cluster.watch

    async def end(_request: web.Request, _plural: str) -> web.Response:
        return web.Response()

    cluster.watch = end
    await cluster.put("pods", pod("a"))
    cluster.follow(VLLM)
    await until(lambda: "ends as soon as it opens" in sink.problems.get(f"{SOURCE} pods", ""))
    await cluster.put("pods", pod("b", "10.0.0.2"))
    await until(lambda: len(sink.addresses) == 2)
    reports = len(sink.past_problems)
    await until(lambda: len(sink.past_problems) > reports + 2)
    assert sink.problems, "is cleared each time a watch opens"
    cluster.watch = watch
    await until(lambda: cluster.watches)
    await cluster.put("pods", pod("c", "10.0.0.3"))
    await until(lambda: len(sink.addresses) == 3)
    await until(lambda: not sink.problems)


async def test_a_watch_resumes_from_the_version_in_a_bookmark(
    cluster: Any, sink: Any, until: Any
) -> None:
    await cluster.put("pods", pod("a"))
    collector = cluster.follow(VLLM)
    await until(lambda: cluster.watches and sink.addresses)
    await cluster.bookmark()
    await until(lambda: collector._pods._version == str(cluster.version))
    cluster.compact()
    cluster.disconnect()
    await cluster.put("pods", pod("b", "10.0.0.2"))
    await until(lambda: len(sink.addresses) == 2)
    assert cluster.lists == 1


async def test_endpoints_survive_an_outage_and_it_is_reported(
    cluster: Any, sink: Any, until: Any
) -> None:
    await cluster.put("pods", pod("a"))
    cluster.follow(VLLM)
    await until(lambda: cluster.watches and sink.addresses)
    cluster.down = True
    cluster.disconnect()
    await until(lambda: len(sink.past_problems) > 5)
    assert "the last list stays in use" in sink.problems[f"{SOURCE} pods"]
    assert sink.addresses == ["10.0.0.1:8000"]
    assert sink.replaced == 1
    cluster.down = False
    await until(lambda: not sink.problems)


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_missing_permission_is_reported_with_the_rule_to_add(
    cluster: Any, sink: Any, until: Any, verb: str
) -> None:
    cluster.denied["pods"] = verb
    cluster.follow(VLLM)
    await until(lambda: sink.problems)
    message = sink.problems[f"{SOURCE} pods"]
    assert f'cannot {verb} resource "pods"' in message
    assert (
        "Role in namespace ml with the rule"
        ' apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]'
    ) in message
    cluster.denied.clear()
    await until(lambda: not sink.problems)


async def test_a_token_that_was_replaced_is_read_again(
    cluster: Any, sink: Any, until: Any, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    cluster.token = "new"
    cluster.follow(VLLM, token_file=token)
    await until(lambda: sink.problems)
    assert "Unauthorized" in sink.problems[f"{SOURCE} pods"]
    await cluster.put("pods", pod("a"))
    token.write_text("new\n")
    await until(lambda: sink.addresses and not sink.problems)


async def test_one_of_two_pods_with_one_address_is_used_and_both_are_reported(
    cluster: Any, sink: Any, until: Any
) -> None:
    for name in "ab":
        await cluster.put("pods", pod(name, "10.0.0.1"))
    cluster.follow(VLLM)
    await until(lambda: sink.addresses)
    [spec] = sink.specs[SOURCE]
    assert spec.labels["laar.dev/pod"] == "ml/b-rank-0"
    assert "ml/a-rank-0 and b both have 10.0.0.1:8000" in sink.problems[f"{SOURCE} pods read"]
    await cluster.delete("pods", "b")
    await until(lambda: not sink.problems)
    assert sink.specs[SOURCE][0].labels["laar.dev/pod"] == "ml/a-rank-0"


async def test_too_many_pods_are_truncated_and_reported(
    cluster: Any, sink: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "MAX_OBJECTS", 5)
    monkeypatch.setattr(collector_module, "MAX_OBJECTS", 5)
    for number in range(9):
        await cluster.put("pods", pod(f"p{number}", f"10.0.1.{number}"))
    cluster.follow(VLLM)
    await until(lambda: len(sink.addresses) == 5)
    assert "narrow the selector" in sink.problems[f"{SOURCE} pods read"]


async def test_a_pool_defines_selector_and_ports_and_its_changes_take_effect(
    cluster: Any, sink: Any, until: Any
) -> None:
    await cluster.put("pods", pod("a", "10.0.0.1"))
    await cluster.put("pods", pod("b", "10.0.0.2", labels={"app": "sglang"}))
    cluster.follow(KubernetesSource(pool="fleet"))
    await until(lambda: sink.problems)
    assert "no such InferencePool" in sink.problems["kubernetes ml/fleet pool"]
    await cluster.put("inferencepools", pool("other", "sglang"))
    await cluster.put("inferencepools", pool())
    await until(lambda: sink.addresses == ["10.0.0.1:8000"])
    assert sink.problems == {}
    await cluster.put("inferencepools", pool(ports=(8000, 8001)))
    await until(lambda: sink.addresses == ["10.0.0.1:8000", "10.0.0.1:8001"])
    await cluster.put("inferencepools", pool(app="sglang", ports=(9000,)))
    await until(lambda: sink.addresses == ["10.0.0.2:9000"])
    broken = pool()
    broken["spec"]["targetPorts"] = [{"number": 0}]
    await cluster.put("inferencepools", broken)
    await until(lambda: sink.problems)
    assert "targetPorts.0.number" in sink.problems["kubernetes ml/fleet pool"]
    assert sink.addresses == ["10.0.0.2:9000"]
    await cluster.delete("inferencepools", "fleet")
    await until(lambda: sink.addresses == [])
    await cluster.put("inferencepools", pool())
    await until(lambda: sink.addresses == ["10.0.0.1:8000"])
    assert sink.problems == {}


async def test_objectives_and_rewrites_of_this_pool_are_reported(
    cluster: Any, sink: Any, until: Any
) -> None:
    def objective(name: str, spec: dict[str, Any], of: str = "fleet") -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"poolRef": {"name": of}, **spec}}

    await cluster.put("inferencepools", pool())
    await cluster.put("inferenceobjectives", objective("urgent", {"priority": 10}))
    await cluster.put("inferenceobjectives", objective("plain", {}))
    await cluster.put("inferenceobjectives", objective("foreign", {"priority": 3}, "other"))
    await cluster.put("inferenceobjectives", objective("bad", {"priority": "high"}))
    rewrite = {
        "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "poolRef": {"name": "fleet"},
            "rules": [{"targets": [{"modelRewrite": "v2", "weight": 1}]}],
        },
    }
    await cluster.put("inferencemodelrewrites", rewrite)
    cluster.follow(KubernetesSource(pool="fleet"))
    source = "kubernetes ml/fleet"
    await until(lambda: sink.priorities.get(source) == {"urgent": 10, "plain": 0})
    await until(lambda: target_of(sink.rules) == "v2")
    assert "bad is ignored: spec.priority" in sink.problems[f"{source} objectives read"]
    await cluster.delete("inferenceobjectives", "bad")
    await cluster.delete("inferenceobjectives", "urgent")
    await cluster.delete("inferencemodelrewrites", "r")
    await until(lambda: sink.priorities[source] == {"plain": 0} and sink.rules == ())
    assert sink.problems == {}


def objective(name: str, priority: int, **pools: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"priority": priority, **pools}}


async def test_an_object_of_v1_applies_to_pools_by_list_and_by_selector(
    cluster: Any, sink: Any, until: Any
) -> None:
    fleet = pool()
    fleet["metadata"]["labels"] = {"tier": "gold"}
    await cluster.put("inferencepools", fleet)
    v1 = "inferenceobjectives.v1.llm-d.ai"
    listed = objective("listed", 1, poolRefs=[{"name": "other"}, {"name": "fleet"}])
    await cluster.put(v1, listed)
    # The older API version shows the same object without the fields that it lacks.
    await cluster.put("inferenceobjectives.llm-d.ai", objective("listed", 1))
    gold = {"matchLabels": {"tier": "gold"}}
    await cluster.put(v1, objective("gold", 2, poolSelector=gold))
    await cluster.put(v1, objective("foreign", 3, poolRefs=[{"name": "other"}]))
    old = objective("old", 4, poolRef={"name": "fleet", "group": "llm-d.ai"})
    await cluster.put("inferenceobjectives.llm-d.ai", old)
    rewrite = {
        "metadata": {"name": "r"},
        "spec": {"poolRefs": [{"name": "fleet"}], "rules": [{"targets": [{"modelRewrite": "v2"}]}]},
    }
    await cluster.put("inferencemodelrewrites.v1.llm-d.ai", rewrite)
    cluster.follow(KubernetesSource(pool="fleet"))
    source = "kubernetes ml/fleet"
    await until(lambda: sink.priorities.get(source) == {"listed": 1, "gold": 2, "old": 4})
    await until(lambda: target_of(sink.rules) == "v2")
    assert sink.problems == {}
    fleet["metadata"]["labels"] = {"tier": "iron"}
    await cluster.put("inferencepools", fleet)
    await until(lambda: sink.priorities[source] == {"listed": 1, "old": 4})


async def test_a_removed_api_version_loses_no_objects_of_another_version(
    cluster: Any, sink: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "ABSENT_WAIT_S", 0.2)
    v1, v1alpha2 = "inferenceobjectives.v1.llm-d.ai", "inferenceobjectives.llm-d.ai"
    cluster.absent = {v1}
    await cluster.put("inferencepools", pool())
    for name, priority in (("urgent", 10), ("batch", -1)):
        await cluster.put(v1alpha2, objective(name, priority, poolRef={"name": "fleet"}))
    cluster.follow(KubernetesSource(pool="fleet"))
    source = "kubernetes ml/fleet"
    seen: list[dict[str, int]] = []
    take = sink.objectives

    def watched(of: str, of_pool: str, known: dict[str, int]) -> None:
        seen.append(dict(known))
        take(of, of_pool, known)

    sink.objectives = watched
    await until(lambda: sink.priorities.get(source) == {"urgent": 10, "batch": -1})
    seen.clear()
    await cluster.put(v1, objective("urgent", 10, poolRefs=[{"name": "fleet"}]))
    cluster.absent = {v1alpha2}
    cluster.disconnect()
    read = f"{source} objectives read"
    await until(lambda: read in sink.problems)
    message = "no longer serves inferenceobjectives.v1alpha2.llm-d.ai; gone with it: batch"
    assert message in sink.problems[read]
    assert sink.priorities[source] == {"urgent": 10}
    assert all("urgent" in known for known in seen)
    cluster.absent = set()
    await until(lambda: sink.priorities[source] == {"urgent": 10, "batch": -1})
    assert sink.problems == {}


async def test_missing_kinds_are_not_a_problem_unless_needed(
    cluster: Any, sink: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "ABSENT_WAIT_S", 0.01)
    cluster.absent = {"inferenceobjectives", "inferencemodelrewrites", "inferencepools"}
    await cluster.put("pods", pod("a"))
    cluster.follow(KubernetesSource(pool="fleet"))
    source = "kubernetes ml/fleet"
    await until(lambda: sink.problems)
    assert set(sink.problems) == {f"{source} inferencepools"}
    assert "install it, or use a pod selector" in sink.problems[f"{source} inferencepools"]
    cluster.absent.discard("inferencepools")
    await cluster.put("inferencepools", pool())
    await until(lambda: sink.addresses and not sink.problems)
    cluster.absent.clear()
    objective = {"metadata": {"name": "x"}, "spec": {"poolRef": {"name": "fleet"}, "priority": 2}}
    await cluster.put("inferenceobjectives", objective)
    await until(lambda: sink.priorities.get(source) == {"x": 2})


async def test_no_call_is_made_beyond_the_permissions(cluster: Any, sink: Any, until: Any) -> None:
    await cluster.put("inferencepools", pool())
    await cluster.put("pods", pod("a"))
    cluster.follow(KubernetesSource(pool="fleet"))
    kinds = (PODS, POOLS, *OBJECTIVES, *REWRITES)
    allowed = {
        (verb, kind.group, kind.plural, "ml") for kind in kinds for verb in ("list", "watch")
    }
    await until(lambda: cluster.asked == allowed)


@pytest.mark.parametrize("seed", range(6))
async def test_endpoints_match_the_cluster_after_any_sequence_of_events(
    cluster: Any, sink: Any, until: Any, seed: int
) -> None:
    """Mix writes, disconnects, cut lines, outages, compactions and bookmarks at random."""
    rng = random.Random(seed)
    cluster.gone_as_status = seed % 2 == 0
    cluster.follow(VLLM)
    names = [f"p{number}" for number in range(12)]
    for _ in range(150):
        name = rng.choice(names)
        match rng.randrange(12):
            case 0:
                cluster.disconnect()
            case 1:
                await cluster.cut_a_line()
            case 2:
                cluster.compact()
            case 3:
                await cluster.bookmark()
            case 4:
                cluster.down = not cluster.down
            case 5 if ("pods", name) in cluster.objects:
                await cluster.delete("pods", name)
            case _:
                app = rng.choice(["vllm", "vllm", "web"])
                item = pod(
                    name, f"10.0.0.{name[1:]}", ready=rng.random() < 0.7, labels={"app": app}
                )
                await cluster.put("pods", item)
        if rng.random() < 0.3:
            await until(lambda: cluster.down or cluster.watches)
    cluster.down = False

    def expected() -> list[str]:
        return sorted(
            f"{item['status']['podIP']}:8000"
            for item in cluster.objects.values()
            if item["metadata"]["labels"]["app"] == "vllm"
            and item["status"]["conditions"][1]["status"] == "True"
        )

    await until(lambda: SOURCE in sink.specs and sink.addresses == expected())
    await until(lambda: not sink.problems)


async def test_responses_that_are_not_lists_and_malformed_events_are_reported(
    serve: Any, sink: Any, start: Any, until: Any
) -> None:
    answers = iter(
        [
            b"<html>",
            b"[]",
            b'{"metadata":{"resourceVersion":"1"},"items":[{}]}',
            b'{"metadata":{"resourceVersion":"1"},"items":[]}',
            b'{"type":"ADDED"}\n',
            b'{"metadata":{"resourceVersion":"1"},"items":[]}',
            b"not json\n",
            b"7\n",
        ]
    )

    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=next(answers, b'{"metadata":{"resourceVersion":"1"},"items":[]}'))

    access = ApiAccess(url="http://" + await serve(handle), namespace="ml")
    collector = KubernetesEndpoints(
        access,
        sink,
        VLLM,
    )
    start(collector.run())
    malformed = "not a list or an event"
    await until(lambda: len([text for text in sink.past_problems if malformed in text]) >= 4)
    assert sink.addresses == []


def test_the_service_account_is_found_inside_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingError, match="kubectl proxy"):
        in_cluster(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("ml\n")
    access = in_cluster(tmp_path)
    assert (access.url, access.namespace) == ("https://[fd00::1]:6443", "ml")
    assert access.ca_file == tmp_path / "ca.crt"
    assert api_module.ACCOUNT.is_absolute()
