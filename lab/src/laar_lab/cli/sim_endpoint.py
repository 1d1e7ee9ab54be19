"""`laar sim-endpoint`: run one simulated vLLM endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laar.errors import SettingError


def sim_endpoint(
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 for a free one.", min=0, max=65535)
    ] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[
        str,
        typer.Option(help="Name of the model. Default: as given by --fleet-model or --profile."),
    ] = "",
    served_name: Annotated[
        list[str] | None, typer.Option(help="Model name that clients may request; repeatable.")
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            help="Engine to imitate: a profile's name, or a file written by `laar lab fit-engine`."
        ),
    ] = "qwen2.5-7b-a100",
    fleet_model: Annotated[
        str | None,
        typer.Option(help="Model in the fleet file that sets the endpoint's speed and accuracy."),
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option(help="Fleet file (YAML). Default: the one that comes with laar.")
    ] = None,
    template: Annotated[
        str, typer.Option(help="Chat template: plain, qwen3, llama3.1, mistral or gpt-oss.")
    ] = "plain",
    time_scale: Annotated[
        float, typer.Option(help="Real seconds per simulated second; 0.05 is twenty times faster.")
    ] = 1.0,
    round_trip: Annotated[
        float,
        typer.Option(help="Seconds by which each answer is delayed, to simulate a distant region."),
    ] = 0.0,
    prefix_caching: Annotated[
        bool,
        typer.Option(
            "--prefix-caching/--no-prefix-caching", help="Cache the prompts of earlier requests."
        ),
    ] = True,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="Fault as kind:value@condition, such as 503:2@0.1; repeatable."),
    ] = None,
    fault_header: Annotated[
        bool, typer.Option(help="Obey the x-sim-fault header, /sim/faults and /sim/outage.")
    ] = False,
    echo: Annotated[
        bool, typer.Option(help="Answer with the models' names and a digest of the question.")
    ] = False,
    max_waiting: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of requests that wait for the engine; others get status 503. "
            "Default: no limit.",
        ),
    ] = None,
    kv_events: Annotated[
        str | None, typer.Option(help="ZMQ address to publish KV events on.")
    ] = None,
) -> None:
    """Run one simulated vLLM endpoint."""
    if fleet is not None and fleet_model is None:
        raise SettingError("--fleet: give one of its models as --fleet-model")
    from laar_lab.sim.endpoint import EndpointSettings, KvEventSettings, parse_fault, run

    main = model or fleet_model or profile
    names = ", ".join(served_name or (main,))
    run(
        EndpointSettings(
            model=main,
            served_names=tuple(served_name or ()),
            host=host,
            port=port,
            profile=profile,
            fleet_model=fleet_model,
            fleet=fleet,
            template=template,
            time_scale=time_scale,
            round_trip_s=round_trip,
            prefix_caching=prefix_caching,
            faults=tuple(parse_fault(text) for text in fault or ()),
            allow_fault_header=fault_header,
            echo=echo,
            max_waiting=max_waiting,
            kv_events=KvEventSettings(endpoint=kv_events) if kv_events else None,
        ),
        lambda endpoint: typer.echo(f"{endpoint.url} serves {names}; Ctrl-C stops it"),
    )
