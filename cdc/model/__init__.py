"""Log positions, events, schemas, errors, topic names and records for Kafka. Pure; imports nothing else of `cdc`."""
