"""The public benchmark: capture and Debezium on the same log, broker and workloads, and what limits both."""
