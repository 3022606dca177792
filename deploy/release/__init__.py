"""Builds what a release consists of, which docs/operations/releases.md lists: `make release`."""
