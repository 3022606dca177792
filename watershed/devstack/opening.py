"""Opens a stack: native, or in containers if the environment requests it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from cdc.model.errors import StackError
from watershed.devstack.endpoints import Servers, given_addresses
from watershed.devstack.stack import Stack

KIND_VARIABLE = "WATERSHED_STACK"  # native (default) or docker


@contextmanager
def open_stack(
    folder: Path,
    *,
    postgres_version: int = 18,
    temporary: bool = False,
    progress: Console | None = None,
    given: Mapping[str, str] | None = None,
) -> Iterator[Servers]:
    """Yields servers that end with this block, and with this process however it ends. `given`: addresses of servers
    that run already, by default those that the environment names. Raises StackError.
    """
    addresses = given_addresses() if given is None else given
    match os.environ.get(KIND_VARIABLE, "native"):
        case "native":
            with Stack(
                folder, postgres_version=postgres_version, temporary=temporary, progress=progress, given=addresses
            ) as stack:
                yield stack
        case "docker":
            from watershed.devstack.docker import DockerStack, images

            with DockerStack(addresses, images(postgres_version)) as containers:
                yield containers
        case other:
            raise StackError(f"{KIND_VARIABLE} is {other!r}", "set it to native or docker, or unset it")
