"""Exact windows in other people's trainers. Each module needs its library: ``pip install "dagnn[transformers]"``."""

__all__: list[str] = []
