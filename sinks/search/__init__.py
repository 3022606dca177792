"""The search index: OpenSearch, one index for each table."""
