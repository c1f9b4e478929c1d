"""How many of what, in words."""


def counted(count: float, thing: str) -> str:
    """A whole number and what it counts: ``1 token``, ``2 tokens``, ``1,024 tokens``.

    Args:
        count: how many, shown without its fraction.
        thing: what one of them is called; its plural is made by an s.
    """
    number = f"{count:,.0f}"
    return f"{number} {thing}" if number == "1" else f"{number} {thing}s"
