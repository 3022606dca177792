"""Log positions, events, schemas, errors, topic names, records for Kafka and what Watershed keeps in its own topics.
Pure; imports nothing else of `cdc`.
"""
