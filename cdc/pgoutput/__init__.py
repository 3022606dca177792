"""PostgreSQL's replication protocol: decodes the bytes of the stream to messages, and messages to rows. Pure."""
