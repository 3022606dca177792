"""Findings of `cdc check` about a cache, before anything is written."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from cdc.config.store_shapes import CacheShape, shape_of
from cdc.config.stores import CacheConfig
from cdc.model.events import TableId, TableSchema
from cdc.model.findings import Finding
from sinks.cache.forms import TableForm
from sinks.cache.keys import CacheKeys, cache_keys
from sinks.cache.server import Command
from sinks.cache.sink import CacheSink
from sinks.check import ONE_ATTEMPT, held
from sinks.errors import RefusedError, SinkError
from sinks.templates import Part

_DEFAULT_SHAPE: Final = CacheShape()


def cache_findings(name: str, section: CacheConfig, prefix: str, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
    """Yields the findings. `schemas`: of the tables as the cache gets them. Raises SinkError for a server that can't be
    used."""
    about, keys = f"store {name}", cache_keys(section, prefix)
    yield from _forms(about, keys, section, schemas)
    with closing(CacheSink.open(section, prefix, ONE_ATTEMPT, name)) as sink:
        try:
            for command in _probes(keys, schemas):
                sink.server.run(*command)
        except SinkError as error:
            yield Finding.failed(about, error)
            return
        foreign = False
        for key in [keys.generation, *(keys.table(schema.table) for schema in schemas)]:
            kind = sink.server.run("TYPE", key).decode()
            if kind not in ("none", "hash"):
                foreign = True
                yield Finding(
                    about,
                    "fail",
                    f"the key {key} holds a {kind}, which the sink did not write",
                    f"DEL {key} if nobody needs it; or set another key_prefix for the sink {name}",
                )
        if not foreign:
            yield Finding(about, "ok", held(sink.generation))


def _forms(about: str, keys: CacheKeys, section: CacheConfig, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
    """Yields a finding for each table whose key templates do not fit it, or could make the key of another one."""
    templates: dict[tuple[TableId, str], list[Part]] = {}
    for schema in schemas:
        try:
            form = TableForm(keys, schema, shape_of(section.shapes, schema.table, _DEFAULT_SHAPE))
            templates |= {(schema.table, text): parts for text, parts in form.check(templates).items()}
        except RefusedError as error:
            yield Finding.failed(about, error)


def _probes(keys: CacheKeys, schemas: Sequence[TableSchema]) -> Iterator[Command]:
    """Yields commands as the sink uses them, which change nothing, to learn whether the user may run them. In a cluster
    each table may be on another node.
    """
    tables = [keys.table(schema.table) for schema in schemas] if keys.in_cluster else []
    for beginning in (f"{keys.generation}:", *tables):
        absent = f"{beginning}\0none"
        yield "EXISTS", absent
        yield "HDEL", absent, "none"
        yield "HGETALL", absent
        yield "HSCAN", absent, 0
        yield "UNLINK", absent
        yield "EVAL", "return 1", 1, absent
