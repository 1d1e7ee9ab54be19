"""Shell completion after `laar --install-completion`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("words", "found"), [("laar cali", "calibrate"), ("laar serve --with", "--with-envoy")]
)
def test_the_shell_completes_commands_and_options(words, found):
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(
        [Path(sys.executable).with_name("laar")],
        env={**os.environ, "_LAAR_COMPLETE": "complete_bash", **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [found]
