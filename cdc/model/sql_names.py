"""Names as they stand in a statement that somebody is to run. Pure."""

import re

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


def sql_name(*parts: str) -> str:
    """With dots between the parts, each quoted where it would be read as another name."""
    return ".".join(part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in parts)
