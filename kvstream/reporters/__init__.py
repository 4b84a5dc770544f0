"""Show a run to the user. Reporters receive events and know nothing else."""

from kvstream.reporters.reporter import Reporter, Reporters

__all__ = ["Reporter", "Reporters"]
