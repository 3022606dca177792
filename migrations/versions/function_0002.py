"""The function that publishes without a table, and the key with which it seals its messages (see cdc/outbox/seal.py).

The function runs with its owner's rights, since only the owner can read the key. Only roles with a grant may
execute it. HMAC is sha256(outer || sha256(inner || message)); the parts that are the same for all messages are
computed once.
"""

from alembic import context, op

revision = "0002"
down_revision = "0001"

_KEY = """
CREATE TABLE {key} (
    secret bytea NOT NULL CHECK (length(secret) = 32),
    inner_pad bytea NOT NULL,
    outer_pad bytea NOT NULL
)
"""
_FILL = """
WITH secret AS (
    SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) AS key
), padded AS (
    SELECT key, key || decode(repeat('00', 32), 'hex') AS block FROM secret
)
INSERT INTO {key}
SELECT key,
       decode((SELECT string_agg(lpad(to_hex(get_byte(block, n) # 54), 2, '0'), '' ORDER BY n)
                 FROM generate_series(0, 63) AS n), 'hex'),
       decode((SELECT string_agg(lpad(to_hex(get_byte(block, n) # 92), 2, '0'), '' ORDER BY n)
                 FROM generate_series(0, 63) AS n), 'hex')
  FROM padded
"""
_FUNCTION = """
CREATE FUNCTION {function}(
    aggregate_type text, aggregate_id text, event_type text, payload jsonb DEFAULT NULL, headers jsonb DEFAULT NULL,
    id uuid DEFAULT gen_random_uuid()
) RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $publish$
DECLARE
    pads record;
    sealed bytea;
BEGIN
    IF aggregate_type IS NULL OR aggregate_type = '' OR aggregate_id IS NULL OR event_type IS NULL OR id IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'an event needs aggregate_type, aggregate_id, event_type and id';
    END IF;
    IF headers IS NOT NULL AND (jsonb_typeof(headers) <> 'object' OR EXISTS (
        SELECT FROM jsonb_each(headers) WHERE jsonb_typeof(value) NOT IN ('string', 'null'))) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'headers are an object of strings';
    END IF;
    sealed := int8send(pg_current_xact_id()::text::int8) || convert_to(jsonb_build_object(
        'id', id, 'aggregatetype', aggregate_type, 'aggregateid', aggregate_id, 'type', event_type,
        'payload', payload::text, 'headers', headers)::text, 'UTF8');
    SELECT inner_pad, outer_pad INTO STRICT pads FROM {key};
    PERFORM pg_logical_emit_message(true, {prefix}, convert_to('w1', 'UTF8') || substr(sealed, 1, 8)
        || sha256(pads.outer_pad || sha256(pads.inner_pad || sealed)) || substr(sealed, 9));
    RETURN id;
END
$publish$
"""
_REVOKES = ("REVOKE ALL ON TABLE {key} FROM PUBLIC", "REVOKE ALL ON FUNCTION {function} FROM PUBLIC")


def upgrade() -> None:
    for statement in (_KEY, _FILL, _FUNCTION, *_REVOKES):
        op.execute(context.config.attributes["names"].quoted(statement))


def downgrade() -> None:
    for statement in ("DROP FUNCTION {function}", "DROP TABLE {key}"):
        op.execute(context.config.attributes["names"].quoted(statement))
