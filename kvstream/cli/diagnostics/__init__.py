"""What this machine can run."""
