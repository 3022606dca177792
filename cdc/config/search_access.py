"""Options of section `sinks.search` that say which hosts are called, and as whom."""

import re
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from cdc.config.section import Section

_NEXT_ADDRESS: Final = re.compile(r",\s*(?=[a-z]+://)")  # other commas may be part of a password


class AwsConfig(Section):
    """Requests are signed (SigV4) with the credentials that AWS's own client finds: environment, profile, web identity,
    container or instance."""

    region: Annotated[str, Field(min_length=1)]  # such as eu-central-1
    service: Literal["es"] = "es"  # Amazon OpenSearch Service

    @field_validator("service", mode="before")
    @classmethod
    def _is_a_cluster(cls, value: object) -> object:
        if value == "aoss":
            raise ValueError(
                "collections of OpenSearch Serverless (aoss) are not supported: they have no refresh and no statistics "
                "of indexes, by which the sink knows what it has written; use a domain (es)"
            )
        return value


def search_addresses(url: str) -> list[str]:
    """Returns the addresses in a text that separates several by commas."""
    return _NEXT_ADDRESS.split(url.strip())
