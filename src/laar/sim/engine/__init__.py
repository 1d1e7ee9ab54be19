"""The engine model: one simulated inference engine, driven by a virtual or by a real clock."""

from laar.sim.engine.blocks import BlockPool
from laar.sim.engine.cost import CostModel, LinearCost, Work
from laar.sim.engine.drive import Timing, drive
from laar.sim.engine.interface import Engine, Job, KvEvent, Load, Progress, Step
from laar.sim.engine.parallel import ParallelEngine
from laar.sim.engine.profile import (
    EngineProfile,
    build_engine,
    load_hardware,
    load_model,
    load_profile,
    profile_names,
    slowed,
)
from laar.sim.engine.roofline import HardwareProfile, ModelProfile, RooflineCost
from laar.sim.engine.schedule import Desk, Plan, Scheduler
from laar.sim.engine.sequence import Seq
from laar.sim.engine.settings import EngineSettings, SlackSettings
from laar.sim.engine.simulated import SCHEDULERS, SimulatedEngine

__all__ = [
    "SCHEDULERS",
    "BlockPool",
    "CostModel",
    "Desk",
    "Engine",
    "EngineProfile",
    "EngineSettings",
    "HardwareProfile",
    "Job",
    "KvEvent",
    "LinearCost",
    "Load",
    "ModelProfile",
    "ParallelEngine",
    "Plan",
    "Progress",
    "RooflineCost",
    "Scheduler",
    "Seq",
    "SimulatedEngine",
    "SlackSettings",
    "Step",
    "Timing",
    "Work",
    "build_engine",
    "drive",
    "load_hardware",
    "load_model",
    "load_profile",
    "profile_names",
    "slowed",
]
