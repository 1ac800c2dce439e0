"""Text from files, made safe to print: a name in a stranger's file must not move the cursor or colour the screen."""


def printable(text: str) -> str:
    r"""The text with every control character as its escape; on one line.

    >>> print(printable("weight\x1b[2J\nnext"))
    weight\x1b[2J\nnext
    """
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
