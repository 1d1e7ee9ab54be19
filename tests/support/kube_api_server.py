"""A small Kubernetes API server with the real semantics of list and watch, and faults on request.

Each write increases the version. The pages of a list show one snapshot. A watch replays the events
since its version, and then follows; if they were compacted, it gets 410, as a status or as an ERROR
event. An object that no longer matches a watch's labels is DELETED for that watch.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
from typing import Any

from aiohttp import web


class KubeApiServer:
    """The objects, the faults, and the received requests."""

    def __init__(self) -> None:
        self.version = 100
        self.compacted = 0
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}  # by (plural, name)
        self.history: list[tuple[int, str, dict[str, Any], dict[str, Any] | None]] = []
        self.news = asyncio.Condition()
        self.watches: set[web.StreamResponse] = set()
        self.asked: set[tuple[str, str, str, str]] = set()  # of (verb, group, plural, namespace)
        self.lists = 0
        self.absent: set[str] = set()
        self.denied: dict[str, str] = {}  # denied verb by plural
        self.token = ""
        self.down = False
        self.gone_as_status = False
        self.snapshots: dict[str, tuple[int, list[dict[str, Any]]]] = {}

    async def put(self, plural: str, item: dict[str, Any]) -> None:
        key = (plural, item["metadata"]["name"])
        before = self.objects.get(key)
        item = copy.deepcopy(item)
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = item
        await self._tell(plural, item, before)

    async def delete(self, plural: str, name: str) -> None:
        before = self.objects.pop((plural, name))
        self.version += 1
        await self._tell(plural, None, before)

    async def _tell(self, plural: str, item: Any, before: Any) -> None:
        self.history.append((self.version, plural, item, before))
        async with self.news:
            self.news.notify_all()

    async def bookmark(self) -> None:
        """Send a bookmark to all watches, after the events that they have not received yet."""
        self.version += 1
        await self._tell("bookmark", None, None)

    def compact(self) -> None:
        self.compacted = self.version
        self.history.clear()
        self.snapshots.clear()

    def disconnect(self) -> None:
        for answer in list(self.watches):
            answer._req.transport.abort()

    async def cut_a_line(self) -> None:
        for answer in list(self.watches):
            with contextlib.suppress(ConnectionError):
                await answer.write(b'{"type":"MODIFIED","object":{"metadata":{"na')
        self.disconnect()

    async def send(self, answer: web.StreamResponse, kind: str, item: Any) -> None:
        await answer.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            request.transport.abort()
            return web.Response()
        parts = request.path.strip("/").split("/")
        group = parts[1] if parts[0] == "apis" else ""
        namespace, plural = parts[-2], parts[-1]
        verb = "watch" if "watch" in request.query else "list"
        self.asked.add((verb, group, plural, namespace))
        if group == "llm-d.ai":  # a group with the same kinds, in two versions
            plural = f"{plural}.v1.{group}" if parts[2] == "v1" else f"{plural}.{group}"
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return status(401, "Unauthorized")
        if plural in self.absent:
            return web.Response(status=404, text="404 page not found")
        if self.denied.get(plural) == verb:
            return status(403, f'{plural} is forbidden: cannot {verb} resource "{plural}"')
        if verb == "list":
            self.lists += 1
            return self.list(request, plural)
        return await self.watch(request, plural)

    def list(self, request: web.Request, plural: str) -> web.Response:
        start = 0
        if token := request.query.get("continue"):
            name, start = json.loads(base64.b64decode(token))
            if name not in self.snapshots:
                return status(410, "The provided continue parameter is too old")
            version, items = self.snapshots[name]
        else:
            name = f"{plural}-{self.version}-{len(self.snapshots)}"
            items = [one for key, one in self.objects.items() if key[0] == plural]
            items = [one for one in items if matches(one, request)]
            version = self.version
        end = start + int(request.query.get("limit", len(items) or 1))
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if end < len(items):
            self.snapshots[name] = version, items
            metadata["continue"] = base64.b64encode(json.dumps([name, end]).encode()).decode()
        return web.json_response({"metadata": metadata, "items": items[start:end]})

    async def watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.compacted and self.gone_as_status:
            return status(410, "too old resource version")
        answer = web.StreamResponse()
        await answer.prepare(request)
        if since < self.compacted:
            await self.send(answer, "ERROR", {"code": 410, "message": "too old resource version"})
            return answer
        self.watches.add(answer)
        try:
            while True:
                for version, kind, item, before in list(self.history):
                    if version <= since:
                        continue
                    since = version
                    if kind == "bookmark":
                        mark = {"metadata": {"resourceVersion": str(version)}}
                        await self.send(answer, "BOOKMARK", mark)
                    if kind != plural:
                        continue
                    now = item is not None and matches(item, request)
                    was = before is not None and matches(before, request)
                    if now:
                        await self.send(answer, "MODIFIED" if was else "ADDED", item)
                    elif was:
                        gone = copy.deepcopy(before)
                        gone["metadata"]["resourceVersion"] = str(version)
                        await self.send(answer, "DELETED", gone)
                async with self.news:
                    while not self.history or self.history[-1][0] <= since:
                        await self.news.wait()
        except ConnectionError:
            return answer
        finally:
            self.watches.discard(answer)


def status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "message": message}
    return web.json_response(body, status=code)


def matches(item: dict[str, Any], request: web.Request) -> bool:
    if fields := request.query.get("fieldSelector"):
        return fields == f"metadata.name={item['metadata']['name']}"
    wanted = [one.split("=") for one in request.query.get("labelSelector", "").split(",") if one]
    labels = item["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in wanted)


def pod(name: str, ip: str = "10.0.0.1", *, ready: bool = True, **metadata: Any) -> dict[str, Any]:
    """Return a pod as the API server writes it, including fields that laar does not read."""
    metadata.setdefault("labels", {"app": "vllm"})
    metadata.setdefault("annotations", {"laar.dev/model": "org/tiny"})
    metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", **metadata},
        "spec": {"nodeName": "n1", "containers": [{"name": "vllm", "image": "vllm:x"}]},
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
            **({"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}),
        },
    }


def pool(
    name: str = "fleet", app: str = "vllm", ports: tuple[int, ...] = (8000,)
) -> dict[str, Any]:
    """Return an InferencePool."""
    return {
        "metadata": {"name": name, "namespace": "ml", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "selector": {"matchLabels": {"app": app}},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "laar", "port": {"number": 9002}},
        },
    }
