"""The tutorial's blocks are run in order, as a new user would.

They use the default ports, so they run in a network namespace. Skipped if none can be created.
"""

import re
import subprocess
import sys

import pytest
from docs_pages import DOCS, fences

# Faster tests of single commands are in tests/envoy, tests/demo and test_docs_run.py.
pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(240)]

TUTORIAL = DOCS / "tutorial.md"
STAYS = {
    "--port 8001": "http://127.0.0.1:8001/health",
    "--port 8002": "http://127.0.0.1:8002/health",
    "laar serve": "http://127.0.0.1:8080/v1/models",
}
"""Commands that keep running, and the addresses that answer once they are up."""
SHORTER = {"--set lookups": "--set lookups --seconds 4 --concurrency 2"}

HEAD = """
set -euo pipefail
ip link set lo up
mkdir "$PLACE/bin"
printf '#!/bin/sh\\nexec "%s" -m laar.cli "$@"\\n' "$PYTHON" > "$PLACE/bin/laar"
chmod +x "$PLACE/bin/laar"
export PATH="$PLACE/bin:$PATH"
up() {
  for _ in $(seq 300); do
    if curl -sf "$1" -o /dev/null; then return; fi
    sleep 0.2
  done
  echo "$1 did not come up"; cat "$PLACE"/*.log; exit 1
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"""


def script():
    """Return the page's blocks as a single shell script."""
    parts = [HEAD]
    for number, fence in enumerate(fences(TUTORIAL)):
        if fence.title:
            parts.append(f"cat > {fence.title} <<'EOF'\n{fence.text}\nEOF")
        if fence.language != "sh" or fence.text.startswith("pip "):
            continue
        text = fence.text.strip()
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        parts.append(f"echo '== {number}'")
        known = [url for command, url in STAYS.items() if command in text]
        if known:
            parts.append(f'{text} > "$PLACE/{number}.log" 2>&1 &\nlast=$!\nup {known[0]}')
        else:
            parts.append(text)
    # The picker and its Envoy, which were started last, must end cleanly.
    parts.append('kill -TERM $last\nwait $last\necho "ended with $?"')
    return "\n".join(parts)


def test_every_command_of_the_tutorial_works_as_described(tmp_path, envoy_binary, monkeypatch):
    alone = ["unshare", "-rn"]
    probe = subprocess.run([*alone, "ip", "link", "set", "lo", "up"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip(f"no network namespace of its own here: {probe.stderr.decode().strip()}")
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("COLUMNS", "140")
    done = subprocess.run(
        [*alone, "bash", "-c", script()], cwd=tmp_path, capture_output=True, text=True,
        timeout=220, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    at = 0
    for text in (
        "laar serve --with-envoy",  # from the next steps printed by `laar init`
        "eds_file: ",
        '"id":"auto"',
        "x-laar-cost-ms:",
        "asked for auto",
        "x-laar-exhausted: true",
        "with this artifact",
        " won by ",
        "Envoy: modes, limits, timeouts and breakers are consistent",
        "ended with 0",
    ):
        found = done.stdout.find(text, at)
        assert found >= 0, f"{text!r} is not in what followed:\n{done.stdout[at:]}\n{done.stderr}"
        at = found
    first, second = (part.split("==")[0] for part in done.stdout.split("asked for auto")[1:])
    shown = r"phi3-mini +(\S+)"  # the column after the model is P
    assert re.search(shown, first)[1] == "-"
    assert float(re.search(shown, second)[1]) > 0.9
