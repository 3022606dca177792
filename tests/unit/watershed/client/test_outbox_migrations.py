"""The SQL that migrations are; that it does what it should is in tests/integration/test_outbox.py."""

from watershed.client.outbox_migrations import NONE, Names, migration_sql, reverting_sql


def test_names_are_quoted_and_grants_are_for_those_who_were_named() -> None:
    names = Names('my "schema"', "events", publishers=("app",), capture="watershed")
    told = migration_sql(names)
    assert 'CREATE TABLE "my ""schema"""."events"' in told
    assert 'GRANT EXECUTE ON FUNCTION "my ""schema"""."publish" TO "app"' in told
    assert 'GRANT SELECT ON "my ""schema"""."outbox_key" TO "watershed"' in told
    assert "GRANT" not in migration_sql(Names())


def test_nobody_may_publish_unless_it_is_granted() -> None:
    told = migration_sql(Names())
    assert 'REVOKE ALL ON FUNCTION "cdc"."publish" FROM PUBLIC' in told
    assert 'REVOKE ALL ON TABLE "cdc"."outbox_key" FROM PUBLIC' in told
    assert "SECURITY DEFINER SET search_path = pg_catalog, pg_temp" in told


def test_what_goes_back_goes_in_turn() -> None:
    told = reverting_sql(Names(), NONE)
    gone = ['DROP FUNCTION "cdc"."publish"', 'DROP TABLE "cdc"."outbox_key"', 'DROP TABLE "cdc"."outbox"']
    places = [told.index(statement) for statement in gone]
    assert places == sorted(places)
    assert gone[2] not in reverting_sql(Names(), "0001")
