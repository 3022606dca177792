"""The search index: OpenSearch, one index for each table.

Readers search through the alias of a table, whose filter hides deleted rows. The filter applies to searches and counts
only: a GET by id (`_doc`, `_source`, `_mget`, HEAD) through the alias finds the tombstone of a deleted row, a document
with `ws_version`, `"ws_deleted": true` and the time, and nothing of the row. It can't be deleted at once, since
OpenSearch forgets the version of a deleted document after a minute, and a late write would bring the row back; it goes
after `tombstone_ttl_s`. So who gets a document by id
looks at `ws_deleted`, or searches for the id with an `ids` query.
"""
