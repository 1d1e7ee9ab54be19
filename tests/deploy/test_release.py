"""The release workflow: its references exist, and its steps work as far as possible locally."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.scripts import module_of

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())


def release() -> Any:
    return module_of(ROOT / "deploy" / "release.py")


def steps() -> list[dict[str, Any]]:
    return [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_the_workflow_runs_existing_commands_and_publishes_after_the_tests() -> None:
    # A YAML 1.1 parser reads the key `on` as true.
    assert WORKFLOW[True]["push"]["tags"] == ["v*"]
    assert WORKFLOW["permissions"] == {"contents": "read"}
    for text in (step["run"] for step in steps() if "run" in step):
        for step in re.findall(r"deploy/release\.py (\w+)", text):
            assert step in {"version", "all"}
    [build] = [step for step in steps() if "build-push" in step.get("uses", "")]
    [context] = re.findall(r"deploy/image\.py context (\S+)", json.dumps(WORKFLOW))
    assert build["with"]["context"] == context
    assert build["with"]["sbom"] is True
    assert build["with"]["provenance"] == "mode=max"
    for name in ("packages", "image", "chart"):
        assert set(WORKFLOW["jobs"][name]["needs"]) == {"build", "test"}
    for step in steps():
        assert "uses" not in step or re.search(r"@(v\d+|release/v\d+)$", step["uses"])


def test_a_tag_must_match_the_version_and_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "laar"\nversion = "1.2.3"\n')
    engine, lab = (tmp_path / name / "pyproject.toml" for name in ("engine", "lab"))
    for each in engine, lab:
        each.parent.mkdir()
    engine.write_text('[project]\nname = "laar-vllm"\nversion = "1.2.3"\n')
    text = (
        '[project]\nname = "laar-lab"\nversion = "1.2.3"\n'
        'dependencies = ["laar[fit]==1.2.3", "laar-vllm==1.2.3"]\n'
    )
    lab.write_text(text)
    log = tmp_path / "CHANGELOG.md"
    log.write_text("# Changelog\n\n## Unreleased\n")
    check = release().check_version
    with pytest.raises(SystemExit, match=r"tag v1\.2\.3"):
        check("v1.2.4", tmp_path)
    with pytest.raises(SystemExit, match="rename Unreleased"):
        check("v1.2.3", tmp_path)
    log.write_text("# Changelog\n\n## [1.2.3] - 2026-12-01\n")
    check("v1.2.3", tmp_path)
    for old in ('version = "1.2.3"', "[fit]==1.2.3", "vllm==1.2.3"):
        lab.write_text(text.replace(old, old.replace("3", "2")))
        with pytest.raises(SystemExit, match="set its version"):
            check("v1.2.3", tmp_path)


def test_only_a_release_has_the_version_of_a_release() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    heads = re.split(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    sections = dict(zip(heads[1::2], heads[2::2], strict=True))
    if ".dev" in version:
        assert not any(head.startswith(version.partition(".dev")[0]) for head in sections)
    else:
        assert not sections["Unreleased"].strip(), "python deploy/release.py set X.Y.Z.dev0"


@pytest.mark.parametrize("version", ["1.10.0", "2.0.0.dev0"])
def test_a_version_is_written_everywhere(tmp_path: Path, version: str) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("results"))
    for name in ("pyproject.toml", "engine/pyproject.toml", "lab/pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    tool = release()
    tool.set_version("1.2.3", tmp_path)
    tool.set_version(version, tmp_path)
    changelog = tmp_path / "CHANGELOG.md"
    assert changelog.read_text() == (ROOT / "CHANGELOG.md").read_text()
    changelog.write_text(f"## {version} - today\n")
    tool.check_version(f"v{version}", tmp_path)
    shown = version.replace(".dev", "-dev")
    overlay = tmp_path / "deploy" / "overlays" / "shared" / "kustomization.yaml"
    found = re.findall(r"\d+\.\d+\.\d+\S*", overlay.read_text())
    assert any(each.startswith(shown) for each in found)
    chart = yaml.safe_load((tmp_path / "deploy" / "chart" / "Chart.yaml").read_text())
    assert chart["version"] == version.replace(".dev", "-dev")
    assert chart["appVersion"] == shown
    with pytest.raises(SystemExit, match=r"X\.Y\.Z"):
        tool.set_version("v1.2", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_built_wheel_installs_in_a_clean_environment(
    tmp_path: Path,
) -> None:
    """Skipped if packages can't be installed."""

    def run(*arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, ROOT / "deploy" / "release.py", *map(str, arguments)],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        if "Could not find a version" in done.stderr or "NewConnectionError" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    dist = tmp_path / "dist"
    said = run("all", dist)
    packages = dist / "packages"
    [wheel], [source] = packages.glob("laar-*.whl"), packages.glob("laar-*.tar.gz")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert "laar/server/admin/page/parts.js" in names
    assert all(name.startswith(("laar/", "laar-")) for name in names)
    [of_lab] = packages.glob("laar_lab-*.whl")
    with zipfile.ZipFile(of_lab) as packed:
        names = packed.namelist()
    assert "laar_lab/sim/data/laar-fleet.yaml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert all(name.startswith(("laar_lab/", "laar_lab-")) for name in names)
    with tarfile.open(source) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "src/laar/cli/check.py"} <= inside
    assert not any(name.startswith(("engine/", "lab/")) for name in inside)
    assert "base install: " in said
    [chart] = dist.glob("laar-*.tgz")
    parts = json.loads((dist / "laar.cdx.json").read_text())["components"]
    assert {"numpy", "pydantic"} <= {part["name"] for part in parts}
    sums = dict(reversed(line.split()) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert {f"packages/{wheel.name}", chart.name, "laar.cdx.json"} <= set(sums)
    assert sums[chart.name] == hashlib.sha256(chart.read_bytes()).hexdigest()
