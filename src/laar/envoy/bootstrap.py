"""One Envoy bootstrap for each way of running laar, from typed messages.

Every shape has an ext_proc filter that asks the picker, the endpoints behind an
``override_host`` cluster, retries on the endpoints that the picker names next
(`laar.envoy.routes`), errors in OpenAI's form, removal of headers that clients may not set before
anything reads them, a JSON access log, and a second listener with ``/ready`` and
``/stats/prometheus`` for kubelet and Prometheus, because the admin port, which can stop Envoy,
stays on loopback.

========== ======================= ===================================== ====================
shape      listens on              its clients                           bodies
========== ======================= ===================================== ====================
sidecar    127.0.0.1               one application beside it, trusted:   native
                                   x-forwarded-for passes as it is
standalone all addresses           anyone: x-forwarded-for gets their    native
                                   address, paths are normalised, slow
                                   headers refused, and those with
                                   underscores dropped
gateway    all addresses           as standalone                         streamed
========== ======================= ===================================== ====================

*Native* sends the picker the whole request body in one message and, of the answer, its headers:
three messages each way however long the answer is. *Streamed* sends the answer's body as well,
piece by piece; Envoy keeps each until it is answered, so that nothing is lost with the picker.
*Full duplex* sends and takes back every chunk of both, as a Gateway API gateway configures a
picker; it exists to test one against their messages.

Failing open, the default, keeps requests flowing while the picker is down: Envoy's least request
takes over. It knows no models, so it is right for endpoints that all accept the model names asked
for; with ``fail_open=False`` such requests get 503 instead. In full duplex a request whose body is
with the picker when that dies gets 503 either way: Envoy keeps no copy. And in full duplex with
retries Envoy 1.40 sends the body of a request that ends in trailers twice (its issue 45470); no
OpenAI client sends trailers, and an endpoint answers 400.

Not promised: TLS towards clients, authentication and rate limits. Put those in front.
"""

from __future__ import annotations

from typing import get_args

import yaml

from laar.envoy.options import BootstrapOptions, Shape
from laar.errors import SettingError, install, unknown

_HEADING = "# Rendered by `laar envoy`; change the options it was rendered with, not this file.\n"


def render(shape: Shape, options: BootstrapOptions | None = None) -> dict[str, object]:
    """The bootstrap as plain JSON values, in Envoy's own field names.

    Raises:
        SettingError: the shape is unknown, or the ``envoy`` extra is not installed.
    """
    if shape not in get_args(Shape):
        raise SettingError(unknown("shape", shape, get_args(Shape)))
    try:
        # Some 50 modules, half a second, and an optional install: only when asked to render.
        from laar.envoy.assembly import bootstrap
    except ModuleNotFoundError as error:
        raise SettingError(
            f"rendering Envoy bootstraps needs the extra `envoy`; {install('envoy')}"
        ) from error
    return bootstrap(shape, options or BootstrapOptions())


def to_yaml(bootstrap: dict[str, object]) -> str:
    """A bootstrap as YAML, the form Envoy's users read."""
    return _HEADING + yaml.safe_dump(bootstrap, sort_keys=False, width=100)
