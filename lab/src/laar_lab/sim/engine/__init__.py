"""The engine model: one simulated inference engine, driven by a virtual or a real clock."""

from laar_lab.sim.engine.blocks import BlockPool
from laar_lab.sim.engine.cost import CostModel, LinearCost, Work
from laar_lab.sim.engine.drive import drive
from laar_lab.sim.engine.interface import Engine, Job, KvEvent, Load, Step
from laar_lab.sim.engine.parallel import ParallelEngine
from laar_lab.sim.engine.profile import (
    EngineProfile,
    build_engine,
    load_hardware,
    load_model,
    load_profile,
    profile_names,
    slowed,
)
from laar_lab.sim.engine.roofline import RooflineCost
from laar_lab.sim.engine.settings import EngineSettings, SlackSettings
from laar_lab.sim.engine.simulated import SCHEDULERS, SimulatedEngine
from laar_lab.sim.engine.states import block_of

__all__ = [
    "SCHEDULERS",
    "BlockPool",
    "CostModel",
    "Engine",
    "EngineProfile",
    "EngineSettings",
    "Job",
    "KvEvent",
    "LinearCost",
    "Load",
    "ParallelEngine",
    "RooflineCost",
    "SimulatedEngine",
    "SlackSettings",
    "Step",
    "Work",
    "block_of",
    "build_engine",
    "drive",
    "load_hardware",
    "load_model",
    "load_profile",
    "profile_names",
    "slowed",
]
