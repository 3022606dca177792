"""Records of topic `<prefix>.audit`: who asked for which operation over HTTP, and what became of it."""

from typing import Any

from cdc.model.control import Record


class AuditRecord(Record):
    """An operation. It has one record before it begins, and one with its result, under the same key."""

    at_us: int  # when it was asked for
    who: str  # a user of http.users, or `oidc:NAME`
    role: str
    address: str  # of the client, or of a proxy in front
    action: str
    path: str
    arguments: dict[str, Any]  # those that were sent: tables, keys, conditions
    result: str = ""  # HTTP's code and what was answered; "" until it has ended
