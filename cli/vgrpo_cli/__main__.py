"""Run the command as `python -m vgrpo_cli`, for launchers that start modules."""

from .app import main

main()
