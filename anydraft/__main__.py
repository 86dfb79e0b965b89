"""``python -m anydraft`` is the command ``anydraft``."""

from anydraft.cli.main import main

main()
