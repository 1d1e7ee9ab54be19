"""The Dockerfile: what it refers to exists, and its steps work where no container engine is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grpc
import pytest
from deploy.kustomized import render
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support import free_port

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
FINAL = LINES[max(i for i, line in enumerate(LINES) if line.startswith("FROM ")) :]


def said(lines: list[str], instruction: str) -> list[str]:
    """The arguments of an instruction, one for each time it stands there."""
    return [line.split(" ", 1)[1] for line in lines if line.startswith(f"{instruction} ")]


def copied() -> list[tuple[list[str], str]]:
    """The paths that are copied from the repository, and their targets."""
    found = [line.split() for line in said(LINES, "COPY") if "--from" not in line]
    return [(names[:-1], names[-1]) for names in found]


def test_it_copies_what_exists_pins_its_base_and_ends_unprivileged() -> None:
    for names, _ in copied():
        for name in names:
            assert (ROOT / name).exists(), name
    [user] = said(FINAL, "USER")
    assert all(int(part) > 0 for part in user.split(":"))
    objects = render(ROOT / "deploy" / "overlays" / "standalone")
    [spec] = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    assert user == "{runAsUser}:{runAsGroup}".format_map(spec["securityContext"])
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    [entry] = [json.loads(line) for line in said(FINAL, "ENTRYPOINT")]
    assert entry[0] in scripts
    for line in said(LINES, "FROM"):
        assert re.search(r":\S*\d", line.split()[0]), "pin the base image"


def test_it_has_the_packages_of_all_that_a_picker_can_do() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    others = {"all", "bench", "bench-proxies", "envoy", "fit", "lab"}
    [installed] = re.findall(r"'\.\[(.*)\]'", "\n".join(LINES))
    assert set(installed.split(",")) == set(project["optional-dependencies"]) - others


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_its_steps_make_a_picker_that_answers_its_probes(tmp_path: Path) -> None:
    """Runs the build's own commands on this machine, with its directories moved to a temporary one.

    Skips where packages can't be installed.
    """
    opt, work = tmp_path / "opt" / "laar", tmp_path / "src"
    work.mkdir()
    first, second = said(LINES, "RUN")[:2]

    def run(command: str) -> None:
        moved = command.replace("/opt/laar", str(opt)).replace("python -m venv", _PYTHON)
        done = subprocess.run(
            ["sh", "-ec", moved], cwd=work, capture_output=True, text=True, check=False
        )
        if "Could not find a version" in done.stderr or "NewConnectionError" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr

    run(first)
    for names, target in copied():
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, work / target, ignore=_CACHES)
            else:
                shutil.copy(ROOT / name, work / target)
    run(second)
    shutil.rmtree(work)  # the second stage has the virtual environment and nothing else
    await _answers_probes(opt, tmp_path)


_PYTHON = f"{sys.executable} -m venv"
_CACHES = shutil.ignore_patterns("__pycache__")


async def _answers_probes(opt: Path, directory: Path) -> None:
    """Starts the image's command on a Kubernetes settings file, as the pod's probes see it."""
    [entry], [arguments] = (
        [json.loads(line) for line in said(FINAL, instruction)]
        for instruction in ("ENTRYPOINT", "CMD")
    )
    ports = {name: free_port() for name in ("ext_proc", "health", "admin")}
    settings = directory / "laar.yaml"
    listen = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    source = {"selector": {"app": "vllm"}, "ports": [8000], "api_server": "http://127.0.0.1:9"}
    settings.write_text(
        json.dumps({"listen": {**listen, "tls": {"self_signed": True}}, "kubernetes": [source]})
    )
    arguments[arguments.index("/etc/laar/laar.yaml")] = str(settings)
    process = await asyncio.create_subprocess_exec(
        str(opt / "bin" / entry[0]), *entry[1:], *arguments,
        env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=directory, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with grpc.aio.insecure_channel(listen["health"]) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for name, wanted in (("liveness", "SERVING"), ("readiness", "NOT_SERVING")):
                answer = await stub.Check(
                    health_pb2.HealthCheckRequest(service=name), timeout=60, wait_for_ready=True
                )
                assert answer.status == health_pb2.HealthCheckResponse.ServingStatus.Value(wanted)
        process.terminate()
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, errors
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
