"""Invalid options cause a sentence and exit status 2, not a traceback."""

import asyncio
import os

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from laar.cli import app
from laar.datalayer import files


@pytest.mark.parametrize(
    "command",
    [["doctor"], ["explain", "request.json", "--url", "http://127.0.0.1:1"]],
    ids=lambda command: command[0],
)
def test_a_file_of_several_lines_is_rejected_as_the_viewers_token(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "laar.yaml").write_text("endpoints: [{address: '127.0.0.1:1', models: [m]}]")
    (tmp_path / "request.json").write_text("{}")
    (tmp_path / "tokens").write_text("alice a-token-of-hers\nbob a-token-of-his\n")
    ended = CliRunner().invoke(app, [*command, "--token-file", "tokens"])
    assert (ended.exit_code, "not a single token" in ended.output) == (2, True)
    assert "a-token-of" not in ended.output


@pytest.mark.parametrize(
    "command",
    [
        ["calibrate", "http://user:secret@127.0.0.1:1"],
        ["explain", __file__, "--url", "user:secret@127.0.0.1:1"],
    ],
    ids=lambda command: command[0],
)
def test_no_password_is_printed_with_an_address(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, command)
    assert (ended.exit_code, "http://127.0.0.1:1/" in ended.output) == (2, True)
    assert "secret" not in ended.output


@pytest.mark.parametrize(
    ("name", "why"), [("pipe", "nothing is written"), (".", "Is a directory"), ("none", "No such")]
)
def test_an_unreadable_token_file_ends_the_command(tmp_path, monkeypatch, name, why):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "_PIPE_MS", 1)
    os.mkfifo("pipe")
    words = ["explain", __file__, "--url", "127.0.0.1:1", "--token-file", name]
    ended = CliRunner().invoke(app, words)
    assert (ended.exit_code, f"laar: {name}: {why}" in ended.output) == (2, True), ended.output


@pytest.mark.parametrize(("key", "why"), [(None, "is not set"), ("a\r\nb: c", "line break")])
def test_a_key_that_cannot_be_sent_is_reported(tmp_path, monkeypatch, key, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "laar.yaml").write_text("endpoints: [{address: '127.0.0.1:1', models: [m]}]")
    ended = CliRunner(env={"KEY": key}).invoke(app, ["doctor", "--key-env", "KEY"])
    assert (ended.exit_code, why in ended.output) == (2, True), ended.output


@pytest.mark.parametrize(
    "command",
    [
        ["calibrate", "http://127.0.0.1:1", "--out", "none/c.json"],
        ["measure", "--endpoint", "http://127.0.0.1:1", "--task", "t", "--out", "none/o.jsonl"],
    ],
    ids=lambda command: command[-1],
)
def test_a_missing_directory_is_reported_before_anything_is_measured(
    tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, command)
    assert (ended.exit_code, "there is no directory none" in ended.output) == (2, True)


async def test_the_answer_of_a_picker_of_another_version_ends_the_command(tmp_path):
    async def answer(_request):
        return web.json_response({"candidates": [{}]})

    site = web.Application()
    site.router.add_route("*", "/{path:.*}", answer)
    (tmp_path / "request.json").write_text("{}")
    words = ["explain", str(tmp_path / "request.json")]
    async with TestServer(site) as server:
        arguments = [*words, "--url", f"127.0.0.1:{server.port}"]
        ended = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert (ended.exit_code, "must be laar" in ended.output) == (2, True), ended.output
