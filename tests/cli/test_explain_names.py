"""Names, addresses and reasons in the output of `laar explain`."""

import orjson
from typer.testing import CliRunner

from laar.cli import app


def test_brackets_in_addresses_and_names_are_printed(tmp_path, monkeypatch):
    """The table once showed only the port of [fd00::12]:8000, an address in an IPv6 cluster."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "laar.yaml").write_text(
        "endpoints:\n"
        "  - {address: '[fd00::12]:8000', models: ['coder[fp8]']}\n"
        "  - {address: '[fd00::13]:8000', models: [chat]}\n"
    )
    body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
    (tmp_path / "request.json").write_bytes(orjson.dumps(body))
    ended = CliRunner().invoke(app, ["explain", "request.json"])
    assert ended.exit_code == 0
    table = ended.output[ended.output.index("endpoint  ") :]
    for name in ("[fd00::12]:8000", "[fd00::13]:8000", "coder[fp8]"):
        assert name in table


def test_endpoints_that_are_left_out_for_the_same_reason_share_a_line(tmp_path, monkeypatch):
    """In a fleet of many models, the reason of the one that fails was one line among dozens."""
    monkeypatch.chdir(tmp_path)
    listed = [f"  - {{address: '10.0.0.{i}:8000', models: [m{i}]}}\n" for i in range(1, 21)]
    (tmp_path / "laar.yaml").write_text("endpoints:\n" + "".join(listed))
    body = {"model": "m7", "messages": [{"role": "user", "content": "hello"}]}
    (tmp_path / "request.json").write_bytes(orjson.dumps(body))
    ended = CliRunner().invoke(app, ["explain", "request.json"])
    assert ended.exit_code == 0
    [line] = [line for line in ended.output.splitlines() if "not considered" in line]
    assert line.startswith("not considered: 10.0.0.1:8000 (m1), 10.0.0.2:8000 (m2), ")
    assert line.endswith(", 10.0.0.20:8000 (m20): does not serve m7")
