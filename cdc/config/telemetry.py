"""Section `telemetry`: where a process sends traces, metrics and lineage, beside the metrics that it serves itself."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from cdc.config.section import SecretOption, Section


def _address(url: str) -> str:
    """Raises ValueError, which does not show the address: a password may be in it."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or parts.query or parts.fragment:
        raise ValueError("the address is written like http://collector.example:4318")
    if "@" in parts.netloc:
        raise ValueError("the address has no user and no password: they have options of their own")
    return url.rstrip("/")


def _sendable(secret: SecretStr) -> SecretStr:
    """Raises ValueError, which does not show the value."""
    text = secret.get_secret_value()
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise ValueError("it is sent in a header: ASCII without line ends, and without blanks around it")
    return secret


HttpAddress = Annotated[str, AfterValidator(_address)]
HeaderSecret = Annotated[SecretOption, AfterValidator(_sendable)]


class TelemetryConfig(Section):
    """OpenTelemetry and OpenLineage. Nothing is sent where no address is given."""

    # OTLP over HTTP: /v1/traces and /v1/metrics follow it. None: that of OTEL_EXPORTER_OTLP_ENDPOINT, if it is set.
    otlp_endpoint: HttpAddress | None = None
    otlp_headers: dict[str, HeaderSecret] = Field(default_factory=dict)  # beside those of OTEL_EXPORTER_OTLP_HEADERS
    openlineage_url: HttpAddress | None = None  # /api/v1/lineage follows it
    openlineage_api_key: HeaderSecret | None = None  # sent as a bearer token
    openlineage_namespace: Annotated[str, Field(min_length=1)] | None = None  # of jobs; None: topics.prefix
