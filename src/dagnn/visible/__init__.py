"""Networks whose nodes mean something: named data in, explained and drawn networks out."""

__all__: list[str] = []
