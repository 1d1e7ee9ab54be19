"""`laar lab list`: list the experiments."""

from __future__ import annotations

from laar_lab.cli.lab.options import lab_console


def list_experiments() -> None:
    """List the experiments with their subjects, numbers of seeds, and times on two cores."""
    from rich.table import Table

    from laar_lab.experiment import spoken_time
    from laar_lab.experiments import all_experiments

    table = Table("experiment", "about", "source", "claims", "seeds", "time")
    for known in all_experiments().values():
        claims, seeds = str(len(known.claims)), str(known.seeds)
        took = spoken_time(known.hours(known.seeds))
        table.add_row(known.name, known.about, known.source, claims, seeds, took)
    lab_console().print(table)
