"""What a run looks like from outside: reporters are fed events and know nothing else."""

from kvstream.reporters.base import Reporter, Reporters

__all__ = ["Reporter", "Reporters"]
