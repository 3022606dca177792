"""What a process sends about its work: spans, metrics, events of lineage. The only importer of opentelemetry."""
