"""``python -m joulewise``."""

from joulewise.cli.main import main

main()
