"""Stands for the Python interpreter that Spark starts: asks the fork server (spark_jobs/fork_server.py) for a process.

`python -I -S fork_launcher.py SOCKET PYTHON ARGUMENT…` runs `PYTHON ARGUMENT…` in a process that the server forks, with
this process's environment, folder and standard streams, and ends with its exit code. If the server does not answer, or
the arguments are not `-m MODULE …`, this process becomes the interpreter. It imports little, because it is started for
each of Spark's Python processes.
"""

import json
import os
import socket
import sys


def main(path: str, python: str, *arguments: str) -> int:
    """Returns the exit code."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if arguments[:1] != ("-m",) or not _asked(connection, path, arguments):
        os.execv(python, [python, *arguments])  # noqa: S606 - without a shell, as Spark would do
    try:
        code = connection.recv(1)
    except OSError:
        code = b""
    return code[0] if code else 1


def _asked(connection: socket.socket, path: str, arguments: tuple[str, ...]) -> bool:
    """Says whether the server has accepted the request."""
    request = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()  # noqa: PTH109 - pathlib takes longer
    try:
        connection.connect(path)
        socket.send_fds(connection, [len(request).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(request)
        return connection.recv(1) == b"+"
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
