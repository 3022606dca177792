"""Loaded classes of Kafka and OpenSearch, cached for the next start (Java's ahead-of-time cache, since version 24).

`watershed/devstack/startup_recorder.py` creates the caches.

Measured on two cores, processor seconds until a server is ready: Kafka 4.7 → 2.0, OpenSearch 9.8 → 4.5. The runtime
from the wheel has no class archive, so most of a start is loading and verifying classes. Java refuses a cache that does
not fit its version or the jars; servers then start without a cache, as they do when there is none.
"""

import hashlib
from pathlib import Path

from watershed.devstack.instance import ServerInstance
from watershed.devstack.java import Jvm

OPTION = "-XX:AOT"


def options(name: str, jvm: Jvm, instance: ServerInstance, record: Path | None = None) -> list[str]:
    """Returns Java options that write loaded classes to `record`, or use the cache if there is a suitable one."""
    if record:
        return [f"{OPTION}Mode=record", f"{OPTION}Configuration={record}"]
    file = cache_file(name, jvm, instance.cache)
    # Java would log a warning for each part of the cache that it can't use.
    return [f"{OPTION}Cache={instance.public(file)}", "-Xlog:aot*=off"] if file.exists() else []


def cache_file(name: str, jvm: Jvm, cache: Path) -> Path:
    """Returns the path of a cache, named by a digest of its dependencies: Java's release, options, and the jars in
    order.
    """
    jars = "\n".join(f"{jar.name} {jar.stat().st_size}" for jar in jvm.class_path)
    text = f"{jvm.release}\n{jvm.general_options}\n{jars}"
    return cache / "startup" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.aot"
