"""PostgreSQL: every query and every connection to the source. The only importer of psycopg in cdc/."""
