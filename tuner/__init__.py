"""tuner: hyper-parameter and runtime-configuration tuning of deep-learning frameworks."""

__version__ = "0.1.0"
