"""The hot path: the capture loop, the assembler of transactions, Kafka transactions, confirmation to PostgreSQL."""
