"""Jars by coordinates and checksum: the lock file, the resolver that fetches them, and the search for a Java."""
