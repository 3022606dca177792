"""Builds records from rows in the form of a profile, and handles changes that no record can hold. Pure."""
