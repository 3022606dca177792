"""PostgreSQL's replication protocol: bytes of the stream to messages, and messages to rows. Pure."""
