"""The engine model: one simulated inference engine, driven by a virtual or by a real clock."""

from laar.lab.engine.blocks import BlockPool
from laar.lab.engine.cost import CostModel, LinearCost, Work
from laar.lab.engine.drive import Timing, drive
from laar.lab.engine.interface import Engine, Job, KvEvent, Load, Progress, Step
from laar.lab.engine.parallel import ParallelEngine
from laar.lab.engine.profile import (
    EngineProfile,
    build_engine,
    load_hardware,
    load_model,
    load_profile,
    profile_names,
    slowed,
)
from laar.lab.engine.roofline import HardwareProfile, ModelProfile, RooflineCost
from laar.lab.engine.schedule import Desk, Plan, Scheduler
from laar.lab.engine.sequence import Seq
from laar.lab.engine.settings import EngineSettings, SlackSettings
from laar.lab.engine.simulated import SCHEDULERS, SimulatedEngine

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
