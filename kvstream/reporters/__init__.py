"""Show a run to the user. Reporters receive events and know nothing else."""
