"""Options that can't be meant: a sentence and status 2, not a traceback."""

import pytest
from typer.testing import CliRunner

from laar.cli import app


@pytest.mark.parametrize(
    "command",
    [["doctor"], ["explain", "request.json", "--url", "http://127.0.0.1:1"], ["tune", "--live"]],
    ids=lambda command: command[0],
)
def test_a_file_of_reporters_is_no_viewers_token(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "laar.yaml").write_text("endpoints: [{address: '127.0.0.1:1', models: [m]}]")
    (tmp_path / "request.json").write_text("{}")
    (tmp_path / "tokens").write_text("alice a-token-of-hers\nbob a-token-of-his\n")
    ended = CliRunner().invoke(app, [*command, "--token-file", "tokens"])
    assert (ended.exit_code, "not a token alone" in ended.output) == (2, True)
    assert "a-token-of" not in ended.output


def test_the_demo_asks_at_least_one_question_at_once():
    ended = CliRunner().invoke(app, ["up", "--requests", "3", "--concurrency", "0"])
    assert (ended.exit_code, "--concurrency" in ended.output) == (2, True)
