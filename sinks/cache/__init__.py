"""The cache: Redis or Valkey, one hash for each row."""
