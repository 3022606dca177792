"""The client of a search cluster: its hosts, the credential of each request, and the files of TLS. No error shows a
secret.
"""

import base64
import os
import ssl
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from opensearchpy import OpenSearch
from opensearchpy.exceptions import ImproperlyConfigured, SerializationError
from opensearchpy.helpers.signer import Urllib3AWSV4SignerAuth
from opensearchpy.serializer import JSONSerializer

from cdc.config.search_access import AwsConfig
from cdc.config.store_shapes import StoreTls
from cdc.config.stores import SearchConfig
from sinks.errors import SinkError
from sinks.json_numbers import read_json

# A bulk request of 5 MiB takes under a second; the timeout is for a node that collects garbage or merges.
ANSWER_TIMEOUT_S: Final = 60
_SERVERLESS_HOST: Final = ".aoss.amazonaws.com"


class _ExactSerializer(JSONSerializer):
    """Reads JSON so that numbers of documents keep their digits."""

    def loads(self, s: Any) -> Any:
        try:
            return read_json(s if isinstance(s, str) else s.decode())
        except ValueError as error:
            raise SerializationError(s, error) from error


def place(config: SearchConfig) -> str:
    """Returns host and port of each address. Raises SinkError for one that is none."""
    parsed = [_parsed(address) for address in config.addresses]
    return ", ".join(f"{parts.hostname}:{_port(parts)}" for parts in parsed)


def open_client(config: SearchConfig) -> OpenSearch:
    """Returns the client; connects to nothing. Raises SinkError."""
    addresses = [_parsed(address) for address in config.addresses]
    has_tls = {parts.scheme == "https" for parts in addresses}
    if len(has_tls) > 1:
        raise SinkError("some addresses of the sink's url have TLS, and others have not", "begin all with https://")
    options: dict[str, Any] = {"headers": _headers(config, addresses)}
    if has_tls == {True}:
        options["ssl_context"] = _tls(config.tls or StoreTls())
    elif config.tls is not None:
        raise SinkError("sinks.search.tls requires an address with TLS", "begin the sink's url with https://")
    if config.aws is not None:
        options["http_auth"] = _signer(config.aws)
    hosts = [
        {"host": parts.hostname, "port": _port(parts), "url_prefix": parts.path, "use_ssl": parts.scheme == "https"}
        for parts in addresses
    ]
    try:
        # A host that does not answer is left for the next one. All else is retried by `Retries`, so that one limit
        # applies. Writes may come twice: their versions make that harmless.
        return OpenSearch(
            hosts,
            timeout=ANSWER_TIMEOUT_S,
            max_retries=len(hosts) - 1,
            retry_on_status=(),
            serializer=_ExactSerializer(),
            **options,
        )
    except (ValueError, ImproperlyConfigured):
        raise _no_address() from None


def _headers(config: SearchConfig, addresses: list[SplitResult]) -> dict[str, str]:
    """Returns the header with the credential; none for signed requests and for a cluster without users."""
    if config.api_key is not None:
        key = config.api_key.get_secret_value()
        return {"authorization": f"ApiKey {_base64(key) if ':' in key else key}"}
    if config.user is not None and config.password is not None:
        return {"authorization": f"Basic {_base64(f'{config.user}:{config.password.get_secret_value()}')}"}
    users = {f"{unquote(parts.username)}:{unquote(parts.password or '')}" for parts in addresses if parts.username}
    if len(users) > 1:
        raise SinkError(
            "the addresses of the sink's url name several users", "set user and password beside the url, for all hosts"
        )
    return {"authorization": f"Basic {_base64(users.pop())}"} if users else {}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _tls(files: StoreTls) -> ssl.SSLContext:
    for name in (files.ca_file, files.certificate_file, files.key_file):
        if name is not None and not os.access(name, os.R_OK):
            raise SinkError(f"sinks.search.tls: file {name} can't be read", "check its name and its permissions")
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except ssl.SSLError as error:
        raise _not_pem(files.ca_file) from error
    if files.certificate_file is not None:
        try:
            # Without this function a key with a passphrase would ask for it on the terminal.
            context.load_cert_chain(files.certificate_file, files.key_file, password=lambda: "")
        except (ssl.SSLError, ValueError) as error:
            raise _not_pem(f"{files.certificate_file} or {files.key_file}") from error
    return context


def _not_pem(name: str | None) -> SinkError:
    return SinkError(
        f"sinks.search.tls: {name} can't be used",
        "files are in PEM form; the key belongs to the certificate, and has no passphrase",
    )


def _signer(aws: AwsConfig) -> Urllib3AWSV4SignerAuth:
    try:
        import botocore.session
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise SinkError("sinks.search.aws needs the package botocore", "pip install 'watershed-cdc[aws]'") from error
    try:
        credentials = botocore.session.get_session().get_credentials()
    except BotoCoreError as error:  # its text may contain what it read
        raise SinkError(
            f"AWS's client can't read its credentials ({type(error).__name__})", "see its profile and its files"
        ) from error
    if credentials is None:
        raise SinkError(
            "sinks.search.aws: AWS's client finds no credentials",
            "give the process a role (web identity, container, instance), a profile, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY",
        )
    return Urllib3AWSV4SignerAuth(credentials, aws.region, aws.service)


def _parsed(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:  # whose text may contain a part of a password
        raise _no_address() from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _no_address()
    if parts.hostname.endswith(_SERVERLESS_HOST):
        raise SinkError(
            "the sink's url is a collection of OpenSearch Serverless, which is not supported",
            "use a domain of Amazon OpenSearch Service: collections have no refresh and no statistics of indexes",
        )
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 9200)


def _no_address() -> SinkError:
    return SinkError(
        "the sink's url is not an HTTP address",
        "write http://host:9200, https:// for TLS; several hosts as https://one:9200,https://two:9200",
    )
