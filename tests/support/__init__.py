"""Support code of tests: each module says at its beginning what it is for."""
