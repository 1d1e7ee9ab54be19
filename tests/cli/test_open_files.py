"""A fleet larger than the soft limit of open files."""

import resource
import sys
from contextlib import AsyncExitStack

import pytest
import yaml

from laar_lab.live.processes import laar_process
from support import RecordingUpstream, eventually, free_port

FLEET, LIMIT = 150, 128


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux answers on all of 127.0.0.0/8")
async def test_a_fleet_larger_than_the_soft_limit_of_open_files_is_polled(tmp_path, http):
    async with RecordingUpstream(host="0.0.0.0") as engines:
        addresses = {f"127.0.1.{n + 1}:{engines.port}" for n in range(FLEET)}
        listen = {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")}
        endpoints = [{"address": address, "model": "m"} for address in addresses]
        settings = tmp_path / "laar.yaml"
        settings.write_text(yaml.safe_dump({"endpoints": endpoints, "listen": listen}))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        picker = laar_process(["serve", "-c", str(settings)], tmp_path / "log")
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(picker)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

            def all_polled():
                return addresses == {asked.headers["host"] for asked in engines.requests}

            await eventually(all_polled, what="a poll of every engine", timeout_s=30.0)
            async with http.get(f"http://{listen['admin']}/fleet") as answer:
                assert answer.status == 200
