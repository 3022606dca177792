"""Certificates of an authority of our own, and TLS in front of a server that has none."""

import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path


class TlsProxy:
    """TLS in front of a server, for clients with a certificate of our authority. The stack's servers have no TLS."""

    def __init__(self, folder: Path, port: int) -> None:
        self._behind = port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
        self._context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                accepted, _ = self._listening.accept()
                with suppress(ssl.SSLError):  # a client without a certificate
                    outside = self._context.wrap_socket(accepted, server_side=True)
                    inside = socket.create_connection(("127.0.0.1", self._behind))
                    for pair in ((outside, inside), (inside, outside)):
                        threading.Thread(target=_copy, args=pair, daemon=True).start()

    def close(self) -> None:
        self._listening.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65_536):
            target.sendall(content)
        target.shutdown(socket.SHUT_WR)


def make_certificates(folder: Path, *names: str) -> Path:
    """Writes the authority (ca.pem), and for each name (default: server and client), as its common name, a certificate
    for 127.0.0.1 with its unencrypted key (<name>.pem, <name>.key). Returns the folder."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    # Python 3.13 demands these extensions, as RFC 5280 does.
    signs = ("-addext", "keyUsage=critical,keyCertSign")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", *signs)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid")
    for name in names or ("server", "client"):
        openssl("req", *new[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return folder
