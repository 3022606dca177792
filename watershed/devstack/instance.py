"""The place of a server: its folder, its ports, the account that it runs under, and the files that it runs from."""

import fcntl
import hashlib
import importlib.util
import os
import random
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cdc.model.errors import StackError

HOST = "127.0.0.1"
# Below the range from which systems take ports for outgoing connections, so that no client takes the port of a server
# that is down.
PORT_RANGE = range(15_000, 32_000)
NOBODY = 65534
# Accessible to all accounts, and kept over a restart of the machine. The owner of folders there is checked.
PUBLIC_FOLDER = Path("/var/tmp")  # noqa: S108


@dataclass(frozen=True, slots=True)
class ServerInstance:
    """The folder, ports and account of one server."""

    folder: Path
    ports: Mapping[str, int]
    identity: str  # of the stack; 22 characters of URL-safe base64, the form of Kafka's cluster ids
    unprivileged: int | None  # uid for servers that refuse to run as root; None: this process's
    cache: Path

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def own(self, *names: str) -> Path:
        """Returns a folder within this one, created if it does not exist, that an unprivileged server may write to."""
        path = self.folder.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        if self.unprivileged is not None:
            os.chown(path, self.unprivileged, self.unprivileged)
        return path

    def public(self, source: Path) -> Path:
        """Returns `source`, or a copy in this place if the unprivileged account can't reach it."""
        if self.unprivileged is None or reachable(source):
            return source
        copy = self.folder.parent / "packages" / source.name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.parent.chmod(0o711)  # independent of the umask
            partial = Path(tempfile.mkdtemp(prefix=".copy-", dir=copy.parent)) / source.name
            if source.is_dir():
                shutil.copytree(source, partial, symlinks=True, copy_function=link_or_copy)
            else:
                link_or_copy(source, partial)
            grant_read(partial)
            partial.replace(copy)
            partial.parent.rmdir()
        return copy


def unprivileged_account() -> int | None:
    """Returns the uid for PostgreSQL and OpenSearch, which refuse to run as root; None if this process is not root."""
    return NOBODY if os.geteuid() == 0 else None


def servers_home(folder: Path) -> Path:
    """Returns the folder of the servers' folders: `folder` itself, or, for root and a folder that others can't enter, a
    folder below /var/tmp that belongs to it.
    """
    if unprivileged_account() is None or reachable(folder):
        return folder
    return PUBLIC_FOLDER / f"watershed-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


def make_home(folder: Path, identity: str) -> None:
    """Creates the servers' home, or empties it if an earlier stack whose own folder was deleted has left it. Raises
    StackError for a folder that belongs to another user.
    """
    home = servers_home(folder)
    if home == folder:
        return
    owner = home / "identity"
    if home.is_symlink() or (home.exists() and home.stat().st_uid != os.geteuid()):
        raise StackError(
            f"{home} belongs to another user", f"make {folder} accessible to others, or let that user remove it"
        )
    if not owner.exists() or owner.read_text(encoding="ascii") != identity:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        home.chmod(0o711)  # independent of the umask
        owner.write_text(identity, encoding="ascii")


def reachable(path: Path) -> bool:
    """Returns whether an account without rights of its own can reach `path`. Folders that do not exist yet are
    ignored.
    """
    path = path.resolve()
    folders = [p for p in (path, *path.parents) if p.is_dir()]
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def grant_read(tree: Path) -> None:
    """Makes a tree readable for all accounts, independent of the umask."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            extra = stat.S_IXOTH if path.is_dir() else 0
            path.chmod(path.stat().st_mode | stat.S_IROTH | extra)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Creates a hard link, or a copy if that is not possible. A hard link takes no space and, unlike a symbolic link,
    needs no access to the folders above the source.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def package_folder(name: str) -> Path:
    """Returns the folder of an installed Python package without importing it. Raises StackError if it is not
    installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise StackError(f"the package {name} is not installed", "pip install 'watershed-cdc[stack]'")
    return Path(spec.submodule_search_locations[0])


class PortClaims:
    """Ports that this stack reserves even while no server listens on them, so that a server finds its port free when it
    starts again, whatever other stacks of this user start meanwhile. Claims end with release() or with this process.
    """

    def __init__(self) -> None:
        self._files: dict[int, int] = {}  # port → descriptor of its lock file

    def claim(self, port: int) -> bool:
        """Claims the port. Returns whether this object has it."""
        if port in self._files:
            return True
        folder = PUBLIC_FOLDER / f"watershed-ports-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._files[port] = descriptor
        return True

    def release(self, port: int | None = None) -> None:
        """Releases one port, or all."""
        for claimed in list(self._files) if port is None else [port]:
            os.close(self._files.pop(claimed))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def choose_ports(count: int, claims: PortClaims, taken: Iterable[int] = ()) -> list[int]:
    """Returns free ports, chosen at random, which are claimed before they are tested."""
    candidates = random.sample(PORT_RANGE, len(PORT_RANGE))
    avoided = set(taken)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            return found
        if port not in avoided and claims.claim(port):
            if is_free(port):
                found.append(port)
            else:
                claims.release(port)
    raise StackError(f"no free port between {PORT_RANGE.start} and {PORT_RANGE.stop}", "stop some servers")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignores closed connections, as servers do
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
