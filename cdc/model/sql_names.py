"""Names in SQL statements that are printed for somebody to execute. Pure."""

import re

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


def sql_name(*parts: str) -> str:
    """Joins the parts with dots, each in quotes if SQL would read it as another name without them."""
    return ".".join(part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in parts)
