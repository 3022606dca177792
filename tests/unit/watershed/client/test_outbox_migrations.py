"""The SQL that migrations are; that it does what it should is in tests/integration/test_outbox.py."""

from watershed.client.outbox_migrations import NONE, Names, migration_sql, reverting_sql


def test_names_are_quoted_and_grants_are_for_those_who_were_named() -> None:
    names = Names('my "schema"', "events", publishers=("app",), capture="watershed")
    reported = migration_sql(names)
    assert 'CREATE TABLE "my ""schema"""."events"' in reported
    assert 'GRANT EXECUTE ON FUNCTION "my ""schema"""."publish" TO "app"' in reported
    assert 'GRANT SELECT ON "my ""schema"""."outbox_key" TO "watershed"' in reported
    assert "GRANT" not in migration_sql(Names())


def test_nobody_may_publish_unless_it_is_granted() -> None:
    reported = migration_sql(Names())
    assert 'REVOKE ALL ON FUNCTION "cdc"."publish" FROM PUBLIC' in reported
    assert 'REVOKE ALL ON TABLE "cdc"."outbox_key" FROM PUBLIC' in reported
    assert "SECURITY DEFINER SET search_path = pg_catalog, pg_temp" in reported


def test_what_goes_back_goes_in_turn() -> None:
    reported = reverting_sql(Names(), NONE)
    gone = ['DROP FUNCTION "cdc"."publish"', 'DROP TABLE "cdc"."outbox_key"', 'DROP TABLE "cdc"."outbox"']
    places = [reported.index(statement) for statement in gone]
    assert places == sorted(places)
    assert gone[2] not in reverting_sql(Names(), "0001")
