"""The Dockerfile: its references exist, and its steps work without a container engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import grpc
import pytest
from deploy.kustomized import render
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy import image
from support import eventually, free_port

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
FINAL = LINES[max(i for i, line in enumerate(LINES) if line.startswith("FROM ")) :]


def said(lines: list[str], instruction: str) -> list[str]:
    """Return the arguments of an instruction, one per occurrence."""
    return [line.split(" ", 1)[1] for line in lines if line.startswith(f"{instruction} ")]


def copied() -> list[tuple[list[str], str]]:
    """Return the names copied from the build folder, and their targets."""
    found = [line.split() for line in said(LINES, "COPY") if "--from" not in line]
    return [(names[:-1], names[-1]) for names in found]


def test_the_image_pins_its_base_and_runs_unprivileged() -> None:
    [user] = said(FINAL, "USER")
    assert all(int(part) > 0 for part in user.split(":"))
    objects = render(ROOT / "deploy" / "overlays" / "standalone")
    [spec] = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    assert user == "{runAsUser}:{runAsGroup}".format_map(spec["securityContext"])
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    [entry] = [json.loads(line) for line in said(FINAL, "ENTRYPOINT")]
    assert entry[-1] in scripts
    [base] = [line for line in said(LINES, "ARG") if line.startswith("BASE=")]
    assert re.search(rf":{image.PYTHON}\S*", base), "pin the base image"
    assert {line.split()[0] for line in said(LINES, "FROM")} == {"${BASE}"}


def test_the_packages_of_the_image_are_the_tested_ones_with_hashes() -> None:
    tested = re.findall(r"(?m)^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text())
    versions = {re.sub("[-_.]+", "-", name.lower()): version for name, version in tested}
    locked = re.findall(r"(?m)^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$",
                        image.LOCK.read_text())  # fmt: skip
    assert len(locked) == image.LOCK.read_text().count("==") > 40
    apart = {name for name, version, _ in locked if versions.get(name) != version}
    assert apart <= {"async-timeout"}, "run: python deploy/image.py lock"
    for name in (re.split(r"[\[<>=~! ]", each)[0] for each in image.requirements()):
        assert name in {each for each, *_ in locked}, "run: python deploy/image.py lock"


async def test_a_container_stopped_during_startup_ends_immediately(tmp_path: Path) -> None:
    """The kernel discards signals for which PID 1 has no handler yet."""
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    trial = await asyncio.create_subprocess_exec(*namespace, "true")
    if await trial.wait():
        pytest.skip("PID namespaces are not allowed here")
    [entry] = [json.loads(line) for line in said(FINAL, "ENTRYPOINT")]
    listen = {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")}
    endpoints = [{"address": "127.0.0.1:1", "models": ["m"]}]
    (tmp_path / "laar.yaml").write_text(json.dumps({"endpoints": endpoints, "listen": listen}))
    outer = await asyncio.create_subprocess_exec(
        *namespace, *entry[:-1], sys.executable, "-m", "laar.cli", "serve", cwd=tmp_path
    )
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")

        def stopped() -> bool:
            inner = children.read_text().strip()
            command = Path(f"/proc/{inner}/cmdline").read_bytes() if inner else b""
            if runs := command.startswith(sys.executable.encode()):
                os.kill(int(inner), signal.SIGTERM)
            return runs

        await eventually(stopped, what="the interpreter")
        status = await asyncio.wait_for(outer.wait(), 60)
        assert status == 128 + signal.SIGINT, "the exit status after Ctrl-C"
    finally:
        if outer.returncode is None:
            outer.kill()
            await outer.wait()


def run(command: str, where: Path) -> None:
    done = subprocess.run(
        ["sh", "-ec", command], cwd=where, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_the_steps_of_the_dockerfile_build_a_picker_that_answers_its_probes(
    tmp_path: Path,
) -> None:
    """Run the build's own commands on this machine, with its directories moved to a temporary one.

    Skipped if packages can't be installed.
    """
    opt, work, folder = tmp_path / "opt" / "laar", tmp_path / "build", tmp_path / "context"
    try:
        image.make_context(folder, (image.arch(),), None)
    except SystemExit as failed:
        pytest.skip(f"no package index can be reached: {failed}")
    work.mkdir()
    for names, _ in copied():
        for name in names:
            source = folder / name.replace("${TARGETARCH}", image.arch())
            target = work / ("wheels" if source.is_dir() else source.name)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    [install] = said(LINES, "RUN")[:1]
    moved = install.replace("/opt/laar", str(opt)).replace("/build/", f"{work}/")
    command = moved.replace("python3 -m venv", _PYTHON)
    run(command, work)
    shutil.rmtree(work)  # the second stage contains only the virtual environment
    await _answers_probes(opt, tmp_path)


_PYTHON = f"{sys.executable} -m venv"


async def _answers_probes(opt: Path, directory: Path) -> None:
    """Start the image's command with settings for Kubernetes; assert that probes succeed."""
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
        *entry, *arguments,
        env={"PATH": f"{opt / 'bin'}:{os.defpath}", "PYTHONDONTWRITEBYTECODE": "1"},
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
