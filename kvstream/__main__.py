"""Run the command ``kvstream`` as ``python -m kvstream``."""

from kvstream.cli import main

main()
