"""The service: which configuration should a job run with, and what is on record, over HTTP."""

from tuner.service.app import make_app
from tuner.service.server import serve

__all__ = ["make_app", "serve"]
