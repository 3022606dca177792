"""Unit tests of watershed/views/."""
