"""The topic of an event, and the places of other columns of its row, in Debezium's syntax. Pure."""

import re
from dataclasses import dataclass
from typing import Final, Literal

Where = Literal["header", "envelope", "partition"]

_WHERE: Final[dict[str, Where]] = {"header": "header", "envelope": "envelope", "partition": "partition"}
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
_NAMED_REFERENCE: Final = re.compile(r"\\k<([A-Za-z][A-Za-z0-9]*)>")
# In a replacement: an escaped character, a group by name, a group by number.
_REFERENCE: Final = re.compile(r"\\(?P<escaped>.)|\$\{(?P<name>[A-Za-z][A-Za-z0-9]*)\}|\$(?P<number>[0-9]+)|[\\$]")


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of an additional column in the record of an event."""

    column: str
    where: Where
    alias: str


def parse_placements(text: str) -> tuple[Placement, ...]:
    """Parses `column:header|envelope|partition[:alias],…`. Raises ValueError for other text."""
    placements = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        column, *rest = (part.strip() for part in entry.split(":"))
        where = _WHERE.get(rest[0].lower()) if 1 <= len(rest) <= 2 else None
        if not column or where is None:
            raise ValueError(f"{entry!r} is not column:header, column:envelope or column:partition, with :alias")
        placements.append(Placement(column, where, rest[1] if len(rest) == 2 and rest[1] else column))
    return tuple(placements)


def is_topic(name: str) -> bool:
    """Says whether Kafka accepts the text as a topic's name."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


class TopicRoute:
    """A regular expression and its replacement, both as Java writes them; a value that it does not match whole is the
    topic's name itself."""

    def __init__(self, regex: str, replacement: str) -> None:
        """Raises ValueError for a wrong pattern or replacement."""
        try:
            self._regex = re.compile(_NAMED_REFERENCE.sub(r"(?P=\1)", _NAMED_GROUP.sub("(?P<", regex)))
        except re.error as error:
            raise ValueError(f"route.topic.regex: {error}") from None
        self._parts: list[str | int] = []  # text, and the numbers of groups
        at = 0
        for found in _REFERENCE.finditer(replacement):
            self._parts.append(replacement[at : found.start()])
            self._parts.append(self._reference(found))
            at = found.end()
        self._parts.append(replacement[at:])

    def _reference(self, found: re.Match[str]) -> str | int:
        if found["escaped"] is not None:
            return found["escaped"]
        if found["name"] is not None:
            if found["name"] not in self._regex.groupindex:
                raise ValueError(f"route.topic.replacement: the regex has no group {found['name']}")
            return self._regex.groupindex[found["name"]]
        digits, text = found["number"] or "", ""
        # Java takes as many digits as name an existing group.
        while len(digits) > 1 and int(digits) > self._regex.groups:
            digits, text = digits[:-1], digits[-1] + text
        if not digits or int(digits) > self._regex.groups:
            raise ValueError("route.topic.replacement: $ without a group that there is; \\$ is the character")
        if text:
            self._parts.append(int(digits))
            return text
        return int(digits)

    def __call__(self, value: str) -> str:
        """The topic's name; not every such text is one (see is_topic)."""
        if self._regex.fullmatch(value) is None:
            return value
        found = self._regex.search(value)
        assert found is not None, "it matches the whole value"
        new = "".join(part if isinstance(part, str) else found[part] or "" for part in self._parts)
        return value[: found.start()] + new + value[found.end() :]
