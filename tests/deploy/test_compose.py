"""The compose file: what its containers run is accepted by laar and by a real Envoy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from laar.envoy.process import validate
from laar.settings import load

ROOT = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((ROOT / "compose" / "compose.yaml").read_text())


def test_the_containers_share_the_files_that_their_settings_name() -> None:
    settings = load(ROOT / "compose" / "laar.yaml").settings
    laar, envoy = COMPOSE["services"]["laar"], COMPOSE["services"]["envoy"]
    writable = [each.split(":")[1] for each in laar["volumes"] if not each.endswith(":ro")]
    for file in (settings.envoy.eds_file, settings.share.snapshot_file):
        assert any(Path(path) in file.parents for path in writable), file
    shown = {each.removesuffix(":ro") for each in envoy["volumes"]}
    assert shown <= {*laar["volumes"]}
    assert {each.partition(":")[0] for each in shown} <= {*COMPOSE["volumes"]}
    of_cluster = (ROOT / "components" / "envoy" / "deployment.yaml").read_text()
    image = re.search(r":-(\S+)}", envoy["image"])
    assert image is not None
    assert f"image: {image[1]}\n" in of_cluster, "one version of Envoy everywhere"


@pytest.mark.envoy
def test_a_real_envoy_accepts_the_bootstrap(envoy_binary: Path, tmp_path: Path) -> None:
    [script] = COMPOSE["services"]["bootstrap"]["command"]
    script = re.sub(r"(/run|/var/lib)/laar", str(tmp_path), script).replace("chown", "true")
    laar = f"{sys.executable} -m laar.cli"
    script = script.replace("laar envoy", f"{laar} envoy", 1)
    subprocess.run(["sh", "-ec", script], check=True, timeout=60)
    bootstrap = yaml.safe_load((tmp_path / "envoy.yaml").read_text())
    validate(bootstrap, tmp_path / "endpoints.json")
    assert "laar" in (tmp_path / "envoy.yaml").read_text()
