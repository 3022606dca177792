"""The findings of `cdc check` about the tables of an SQL store, before anything is written."""

from collections.abc import Iterator, Sequence
from contextlib import closing

from sqlalchemy import text

from cdc.config.stores import SqlConfig
from cdc.model.events import TableSchema
from cdc.model.findings import Finding
from cdc.model.sql_names import sql_name
from sinks.check import ONE_ATTEMPT, held
from sinks.errors import RefusedError
from sinks.sql.sink import SqlSink
from sinks.sql.tables import TableForm


def sql_findings(name: str, section: SqlConfig, prefix: str, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
    """Yields the findings. `schemas`: of the tables as the database gets them. Raises SinkError for a database that
    can't be used."""
    about = f"store {name}"
    with closing(SqlSink.open(section, prefix, ONE_ATTEMPT, name)) as sink:
        if sink.server.dialect.has_schemas:
            yield from _rights(about, name, sink, schemas)
        forms: list[TableForm] = []
        has_failed = False
        for schema in schemas:
            try:
                forms.append(sink.check(schema, forms))
            except RefusedError as error:
                yield Finding.failed(about, error)
                has_failed = True
        if not has_failed:
            yield Finding(
                about, "ok", f"{held(sink.generation)}; writes {', '.join(form.name for form in forms) or 'no table'}"
            )


def _rights(about: str, name: str, sink: SqlSink, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
    """Yields a finding for each right that the role lacks, each with the statement that grants it."""
    with sink.server.reading() as connection:
        role, database, may_create, is_read_only, is_standby = connection.execute(
            text(
                "SELECT current_user, current_database(), has_database_privilege(current_database(), 'CREATE'),"
                " current_setting('default_transaction_read_only') = 'on', pg_is_in_recovery()"
            )
        ).one()
        rights: dict[str, bool] = dict(
            connection.execute(
                text(
                    "SELECT nspname::text, has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE')"
                    " FROM pg_namespace WHERE nspname = ANY (:names)"
                ),
                {"names": (wanted := sink.schemas(schemas))},
            )
            .tuples()
            .all()
        )
    if is_standby:
        yield Finding(about, "fail", "the server is a standby", f"name the primary in url of the sink {name}")
    elif is_read_only:
        yield Finding(
            about,
            "fail",
            f"transactions of role {role} in database {database} are read-only (default_transaction_read_only)",
            f"ALTER DATABASE {sql_name(database)} SET default_transaction_read_only = off",
        )
    missing = [one for one in wanted if one not in rights]
    if missing and not may_create:
        yield Finding(
            about,
            "fail",
            f"role {role} may not create the sink's schemas ({', '.join(missing)}) in database {database}",
            f"GRANT CREATE ON DATABASE {sql_name(database)} TO {sql_name(role)}",
        )
    for schema, is_granted in rights.items():
        if not is_granted:
            yield Finding(
                about,
                "fail",
                f"role {role} may not create tables in schema {schema}",
                f"GRANT USAGE, CREATE ON SCHEMA {sql_name(schema)} TO {sql_name(role)}",
            )
