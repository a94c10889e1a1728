"""Search strategies: they decide what to do next and learn from the outcome."""

from tuner.search.crew import Driver
from tuner.search.factored import FactoredSearch
from tuner.search.joint import JointSearch
from tuner.search.optuna_study import STORAGE_FAULTS, OptunaStudy
from tuner.search.outlook import Aim, Outlook, Target
from tuner.search.raytune import RayTune
from tuner.search.strategy import Probe, Races, Step, Stop, Strategy, Train, Verify, View

__all__ = [
    "STORAGE_FAULTS",
    "Aim",
    "Driver",
    "FactoredSearch",
    "JointSearch",
    "OptunaStudy",
    "Outlook",
    "Probe",
    "Races",
    "RayTune",
    "Step",
    "Stop",
    "Strategy",
    "Target",
    "Train",
    "Verify",
    "View",
]
