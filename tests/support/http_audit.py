"""Audit records of operations over HTTP, in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cdc.config.http_settings import HttpConfig
from cdc.model.audit import AuditRecord
from cdc.model.errors import WatershedError
from watershed.http.audit import Audit


@dataclass
class RecordedAudit:
    """Keeps what was written; fails if it has an error."""

    http: HttpConfig = field(default_factory=HttpConfig)
    entries: list[tuple[str, AuditRecord]] = field(default_factory=list)
    fails: WatershedError | None = None

    @cached_property
    def audit(self) -> Audit:
        return Audit(self.http, self.write, self.read)

    def write(self, identity: str, record: AuditRecord) -> None:
        if self.fails is not None:
            raise self.fails
        self.entries.append((identity, record))

    def read(self, count: int) -> Sequence[tuple[str, AuditRecord]]:
        if self.fails is not None:
            raise self.fails
        return self.entries[-count:]

    @property
    def said(self) -> list[tuple[str, str, str]]:
        """Who, action, and the beginning of the result, of each record."""
        return [(one.who, one.action, one.result[:3]) for _, one in self.entries]
