"""The search index: OpenSearch, one index for each table.

Readers search through the alias of a table, whose filter hides deleted rows. The filter applies to searches and counts
only: a GET by id (`_doc`, `_source`, `_mget`, HEAD) through the alias finds the tombstone of a deleted row, a document
with `ws_version` and `"ws_deleted": true` and nothing of the row. It can't be deleted, since OpenSearch forgets the
version of a deleted document after a minute, and a late write would bring the row back. So who gets a document by id
looks at `ws_deleted`, or searches for the id with an `ids` query.
"""
