"""The outbox table: Debezium's columns, and the time at which a row was written, for pruning by age."""

from alembic import context, op

revision = "0001"
down_revision = None

_UP = """
CREATE TABLE {table} (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregatetype varchar(255) NOT NULL,
    aggregateid varchar(255) NOT NULL,
    type varchar(255) NOT NULL,
    payload jsonb,
    created_at timestamptz NOT NULL DEFAULT now()
)
"""


def upgrade() -> None:
    op.execute(context.config.attributes["names"].quoted(_UP))


def downgrade() -> None:
    op.execute(context.config.attributes["names"].quoted("DROP TABLE {table}"))
