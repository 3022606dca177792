"""The search index: OpenSearch, one index for each table.

Readers search through the alias of a table, whose filter hides deleted rows. The filter applies to searches and counts
only: a GET by id (`_doc`, `_source`, `_mget`, HEAD) through the alias finds the tombstone of a deleted row: a document
with `ws_version`, `"ws_deleted": true` and the time of deletion, without any column. OpenSearch forgets the version of
a document one minute after the document is deleted, and a late write would then restore the row; so a tombstone is
deleted only after `tombstone_ttl_s`. A reader that gets documents by id therefore checks `ws_deleted`, or searches for
the id with an `ids` query.
"""
