"""A serving picker loads nothing of fitting, planning, the lab and gRPC's library."""

import subprocess
import sys

APART = ("laar.accuracy.fitting", "laar_lab", "laar_lab.sim", "sklearn")


def loaded(code):
    code = f"import sys; {code}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.split()


def test_serving_loads_neither_fitting_nor_batch_algorithms_nor_grpcs_library():
    own = loaded("import laar.server.runner, laar.server.h2")
    assert not [name for name in own if name.startswith(APART)]
    assert "grpc" not in own


def test_a_feature_whose_extra_is_missing_is_named_with_it(tmp_path):
    settings = tmp_path / "laar.yaml"
    tls = "listen: {tls: {self_signed: true}}"
    settings.write_text(f"{tls}\nendpoints: [{{address: '10.9.0.1:1', model: m}}]")
    without = "import sys; sys.modules['cryptography'] = None; from laar.cli import app; app()"
    for command in ("check", "serve"):
        called = [sys.executable, "-c", without, command, "-c", str(settings)]
        ran = subprocess.run(called, capture_output=True, text=True)
        assert ran.returncode == 2
        assert "needs the package cryptography" in ran.stderr
        assert "[tls]'" in ran.stderr
