"""A Redis for tests that change its settings, kill it or empty it: the shared one belongs to others too. TLS."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.tls import make_certificates
from watershed.devstack.stack import Stack


@dataclass(frozen=True)
class OwnRedis:
    url: str
    stack: Stack  # to kill and restart `redis`


@pytest.fixture
def own_redis() -> Iterator[OwnRedis]:
    folder = Path(tempfile.mkdtemp(prefix="watershed-redis-"))
    try:
        with Stack(folder, temporary=True, given={}) as stack:
            yield OwnRedis(stack.start("redis").redis_url, stack)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    return make_certificates(tmp_path)
