"""Whether the functions of mappings are the same wherever a sink runs."""

from collections.abc import Mapping

from cdc.config.row_functions import row_function
from sinks.errors import SinkError


def require_versions(versions: Mapping[str, str]) -> None:
    """Raises SinkError if a function has another version here than where the sink's job began (`versions`), and
    ConfigError if it is not installed here."""
    for name, version in versions.items():
        if (here := row_function(name).version) != version:
            raise SinkError(
                f"function {name} has version {here} on one machine or process of the sink, and version {version} "
                "where its job began",
                "install the same version of its package wherever sinks run, then start the sink again",
            )
