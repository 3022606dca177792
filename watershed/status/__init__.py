"""The state of a pipeline, computed in one place from source and topics, for the CLI, HTTP and metrics."""
