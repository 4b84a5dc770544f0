"""``python -m kvstream`` is the command ``kvstream``."""

from kvstream.cli import main

main()
