"""`laar --version` never calls a checkout by the name of a release."""

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from laar.cli.version import described

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """Make a repository with one commit; return its folder, and a function that runs git there."""
    folder = tmp_path / "checkout"
    (folder / "src" / "laar").mkdir(parents=True)

    def git(*arguments):
        command = ["git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (folder / "pyproject.toml").write_text('[project]\nversion = "9.8.0.dev0"\n')
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    return folder, git


def test_a_checkout_names_its_commit_and_changes_to_it(checkout):
    folder, git = checkout
    commit = git("rev-parse", "--short", "HEAD")
    assert described(folder / "src" / "laar") == f"9.8.0.dev0+g{commit}"
    (folder / "pyproject.toml").write_text('[project]\nversion = "9.8.0.dev1"\n')
    assert described(folder / "src" / "laar") == f"9.8.0.dev1+g{commit}.dirty"


def test_a_release_names_no_commit(checkout):
    folder, _ = checkout
    (folder / "pyproject.toml").write_text('[project]\nversion = "9.8.0"\n')
    assert described(folder / "src" / "laar") == "9.8.0"


def test_without_git_the_version_alone_is_given(checkout, monkeypatch, tmp_path):
    folder, _ = checkout
    monkeypatch.setenv("PATH", str(tmp_path))
    assert described(folder / "src" / "laar") == "9.8.0.dev0"


def test_an_unpacked_archive_does_not_name_the_repository_around_it(checkout):
    folder, _ = checkout
    inner = folder / "inner" / "src" / "laar"
    inner.mkdir(parents=True)
    shutil.copy(folder / "pyproject.toml", folder / "inner")
    assert described(inner) == "9.8.0.dev0"


def test_elsewhere_the_version_is_that_of_the_installed_package(checkout):
    folder, _ = checkout
    site = folder / "lib" / "site-packages" / "laar"
    site.mkdir(parents=True)
    assert described(site) == version("laar")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wheel_built_from_a_checkout_knows_its_commit(tmp_path):
    """Skipped if packages can't be installed."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    wheels = tmp_path / "wheels"
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            wheels,
            clone,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Could not find a version" in built.stderr:
        pytest.skip("no package index can be reached")
    assert built.returncode == 0, built.stderr
    [wheel] = wheels.iterdir()
    head = ["git", "-C", clone, "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        if ".dev" in wheel.name:
            assert packed.read("laar/commit.txt").decode() == commit
        else:
            assert "laar/commit.txt" not in names
