"""Names and addresses in the output of `laar explain`."""

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
