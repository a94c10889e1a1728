"""Optuna's samplers by their names in the configuration."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import optuna

from tuner.config.schema import SamplerConfig
from tuner.values.errors import ConfigError

_SAMPLERS: Mapping[str, Callable[..., optuna.samplers.BaseSampler]] = {
    "tpe": optuna.samplers.TPESampler,
    "nsga2": optuna.samplers.NSGAIISampler,
    "gp": optuna.samplers.GPSampler,
    "random": optuna.samplers.RandomSampler,
}


def make_sampler(config: SamplerConfig, seed: int) -> optuna.samplers.BaseSampler:
    """Make the Optuna sampler that a configuration names.

    Raises:
        ConfigError: If the sampler rejects its options.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return _SAMPLERS[config.name](seed=seed, **config.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"sampler.options do not fit {config.name}: {error}") from error
