"""`laar envoy` without options renders the same as the package without options."""

from __future__ import annotations

from typing import get_args

import pytest
from typer.testing import CliRunner

from laar.cli import app
from laar.envoy.bootstrap import render, to_yaml
from laar.envoy.options import Shape


@pytest.mark.parametrize("shape", get_args(Shape))
def test_the_options_of_laar_envoy_have_the_defaults_of_the_bootstraps(shape: Shape) -> None:
    printed = CliRunner().invoke(app, ["envoy", "--shape", shape])
    assert printed.exit_code == 0, printed.output
    assert printed.output == to_yaml(render(shape))
