"""Groups of subcommands that would make cli.py too long; each module is loaded when its command runs."""

__all__: list[str] = []
