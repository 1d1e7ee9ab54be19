"""The engine model: one simulated inference engine, driven by a virtual or a real clock."""

from laar_lab.sim.engine.blocks import BlockPool
from laar_lab.sim.engine.cost import CostModel, LinearCost, Work
from laar_lab.sim.engine.drive import Timing, drive
from laar_lab.sim.engine.interface import Engine, Job, KvEvent, Load, Progress, Step
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
from laar_lab.sim.engine.roofline import HardwareProfile, ModelProfile, RooflineCost
from laar_lab.sim.engine.schedule import Desk, Plan, Scheduler
from laar_lab.sim.engine.sequence import Seq
from laar_lab.sim.engine.settings import EngineSettings, SlackSettings
from laar_lab.sim.engine.simulated import SCHEDULERS, SimulatedEngine
from laar_lab.sim.engine.states import block_of

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
    "block_of",
    "build_engine",
    "drive",
    "load_hardware",
    "load_model",
    "load_profile",
    "profile_names",
    "slowed",
]
