"""Kafka: producers, consumers and administration. The only importer of confluent_kafka in cdc/."""
