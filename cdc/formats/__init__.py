"""Rows to records, in the form of a profile, and changes that no record can hold. Pure."""
