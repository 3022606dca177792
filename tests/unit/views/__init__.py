"""Unit tests of views/."""
