"""The nearest of the known names, for errors about a name that is not known. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Returns `; did you mean …?` to follow a sentence; "" if nothing that is known resembles the name."""
    text = str(name)
    names = {str(one).casefold(): str(one) for one in known}
    nearest = get_close_matches(text.casefold(), names, n=1, cutoff=0.7)
    return f"; did you mean {names[nearest[0]]}?" if nearest and names[nearest[0]] != text else ""
