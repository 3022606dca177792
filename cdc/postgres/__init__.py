"""The source: every query and every connection. The only importer of psycopg."""
