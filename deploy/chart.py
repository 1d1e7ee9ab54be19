"""Build the Helm chart from the overlays: `python -m deploy.chart DIST [IMAGE]`, from the root.

The chart contains each overlay as rendered by kustomize, one template that applies the values, and
the objects for monitoring. With an image as the only value it installs the same objects as
`kubectl apply -k`.
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
from pathlib import Path

import yaml
from deploy.image import named_values
from deploy.kustomized import documents, render

ROOT = Path(__file__).parents[1]
SHAPES = ("inference-pool", "shared", "sidecar", "standalone")
"""The overlays included."""


def chart_files() -> dict[str, bytes]:
    """Return the chart's files by path below ``laar/``."""
    chart = ROOT / "deploy" / "chart"
    found = {
        str(path.relative_to(chart)): path.read_bytes()
        for path in sorted(chart.rglob("*"))
        if path.is_file()
    }
    components = ROOT / "deploy" / "components"
    [rules, board] = render(components / "rules")
    [monitor] = documents(components / "monitoring" / "podmonitor.yaml")
    for name, each in (("podMonitor", monitor), ("rules", rules), ("dashboard", board)):
        found[f"monitoring/{name}.yaml"] = yaml.safe_dump(each, sort_keys=False).encode()
    for shape in SHAPES:
        objects = render(ROOT / "deploy" / "overlays" / shape)
        texts = [yaml.safe_dump(each, sort_keys=False) for each in objects]
        found[f"overlays/{shape}.yaml"] = "---\n".join(texts).encode()
    return found


def pack(directory: Path, image: str = "") -> Path:
    """Write the chart as a Helm archive, reproducibly; return its path.

    Args:
        directory: output directory.
        image: image repository; empty for the one in values.yaml.
    """
    files = chart_files()
    if image:
        values = files["values.yaml"].decode()
        files["values.yaml"] = named_values(values, image, "", "").encode()
    version = yaml.safe_load(files["Chart.yaml"])["version"]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"laar-{version}.tgz"
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(f"laar/{name}")
            entry.size, entry.mode = len(files[name]), 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    path.write_bytes(gzip.compress(raw.getvalue(), mtime=0))
    return path


if __name__ == "__main__":
    print(pack(Path(sys.argv[1]), *sys.argv[2:]))
