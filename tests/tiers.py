"""pytest plugin: the tiers of the tests, each with a verb of make.

| verb              | which tests                                                                  | marks     |
|-------------------|------------------------------------------------------------------------------|-----------|
| `make test-fast`  | those without a server: units, properties, models, simulations, documents    |           |
| `make test`       | these, integration, conformance of each store, short faults                  | `servers` |
| `make test-whole` | tutorials, demo, console, other PostgreSQL versions, forms of stores          | `whole`   |
| `make prove-long` | campaigns, and what few users meet                                           | `long`    |

A file puts itself into the last tier by `pytestmark = pytest.mark.whole`. Cases of a parametrised test that differ in
the server's version or a store's form are put there by this plugin, because their files are of the tier before.
"""

from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Final

import pytest

# Fixtures that start a server or Spark.
SERVERS: Final = frozenset(
    {
        "stack",
        "postgres",
        "postgres15",
        "postgres16",
        "postgres17",
        "kafka",
        "opensearch",
        "redis",
        "redis_cluster",
        "spark",
    }
)
SERVER_FOLDERS: Final = frozenset({"integration", "conformance", "faults"})
# Values of parameters: servers and forms that few tests need for what they show.
VARIANTS: Final = frozenset(
    {
        "postgres15",
        "postgres16",
        "postgres17",
        "cache-json",
        "cache-columns",
        "cache-lookups",
        "search-shaped",
        "search-elasticsearch",
    }
)
# Another product behind the same adapter, which differs in few requests.
LONG_VARIANT: Final = "search-elasticsearch"
SHORT_OF_LONG_VARIANT: Final = frozenset({"tests/conformance/test_mappings.py", "tests/conformance/test_sweeps.py"})
# Where the variants are what a file shows.
ABOUT_VARIANTS: Final = frozenset(
    {
        "tests/conformance/test_evolution.py",
        "tests/conformance/test_mappings.py",
        "tests/conformance/test_values.py",
        "tests/integration/test_value_matrix.py",
        "tests/integration/test_capture_shapes.py",
    }
)


def marks_of(path: PurePosixPath, fixtures: Collection[str], parameters: Collection[object]) -> set[str]:
    """Returns the marks of a test that its file does not set: `servers`, `whole` and `long`."""
    found = set()
    if SERVERS & set(fixtures) or path.parts[1] in SERVER_FOLDERS:
        found.add("servers")
    named = {
        text
        for value in parameters
        for text in (value if isinstance(value, tuple) else (value,))
        if isinstance(text, str)
    }
    if VARIANTS & named and str(path) not in ABOUT_VARIANTS:
        found.add("whole")
    if LONG_VARIANT in named and str(path) not in SHORT_OF_LONG_VARIANT:
        found.add("long")
    return found


@pytest.hookimpl(tryfirst=True)  # before the option -m deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        assert isinstance(item, pytest.Function)
        path = PurePosixPath(item.path.relative_to(config.rootpath).as_posix())
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        for mark in marks_of(path, item.fixturenames, parameters):
            item.add_marker(mark)
