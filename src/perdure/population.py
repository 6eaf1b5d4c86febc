"""Populations: ``perdure.population.Population(members, hyperparameters, apply)``."""

from perdure.adapters.population import Population

__all__ = ["Population"]
