"""Writes the lock file again from the wanted jars. Run it after changing a version in this module.

Transitive dependencies are resolved once, here; everything else reads coordinates from the lock. Versions are exact,
never "the newest": those of Kafka (4.4.0) and OpenSearch (3.9.0) were published without some of their parts.
"""

import hashlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from cdc.model.errors import StackError
from spark_jobs.jars.lock import LOCK_FILE, Coordinates, Jar, read_lock, write_lock
from spark_jobs.jars.maven import MavenRepository, context
from spark_jobs.jars.resolver import mirror

KAFKA = "4.3.1"
OPENSEARCH = "3.8.0"
ICEBERG = "1.12.0"
ICEBERG_REST = "1.11.0"  # the newest that was published with its test fixtures
HADOOP = "3.4.2"  # equals that of PySpark's hadoop-client jars
AWS_SDK = "2.54.17"  # equals that in Iceberg's bundle
JETTY = "12.1.14"
APICURIO = "3.3.3"
APICURIO_CONVERTER = "2.6.13.Final"  # the newest whose dependencies were all published
DEBEZIUM = "3.7.0.Final"
CONNECT_JETTY = "12.0.34"  # equals that in the POM of connect-runtime


@dataclass(frozen=True, slots=True)
class JarGroup:
    """Jars of one place. A root that ends with `!` does not decide the versions of the others' dependencies."""

    place: str
    roots: tuple[str, ...]
    transitive: bool = True
    besides: tuple[str, ...] = ()  # places whose jars are there already
    without: tuple[str, ...] = ()  # artifacts that are left out


_PLUGIN = "org.opensearch.plugin"
_LIB = ("opensearch/lib",)
WANTED = (
    JarGroup("kafka", (f"org.apache.kafka:kafka_2.13:{KAFKA}", "org.slf4j:slf4j-simple:1.7.36")),
    JarGroup(
        "opensearch/lib",
        (
            f"org.opensearch:opensearch:{OPENSEARCH}",
            f"org.opensearch:opensearch-agent-bootstrap:{OPENSEARCH}",
            f"org.opensearch:opensearch-plugin-classloader:{OPENSEARCH}",
            "org.apache.logging.log4j:log4j-core:2.25.4!",
        ),
    ),
    JarGroup("opensearch/modules/lang-painless", (f"{_PLUGIN}:lang-painless:{OPENSEARCH}",), besides=_LIB),
    JarGroup("opensearch/modules/analysis-common", (f"{_PLUGIN}:analysis-common:{OPENSEARCH}",), besides=_LIB),
    JarGroup("opensearch/modules/mapper-extras", (f"{_PLUGIN}:mapper-extras-client:{OPENSEARCH}",), besides=_LIB),
    JarGroup("opensearch/modules/parent-join", (f"{_PLUGIN}:parent-join-client:{OPENSEARCH}",), besides=_LIB),
    JarGroup("opensearch/modules/percolator", (f"{_PLUGIN}:percolator-client:{OPENSEARCH}",), besides=_LIB),
    JarGroup("opensearch/modules/reindex", (f"{_PLUGIN}:reindex-client:{OPENSEARCH}",), besides=_LIB),
    JarGroup(
        "opensearch/modules/transport-netty4",
        (f"{_PLUGIN}:transport-netty4-client:{OPENSEARCH}",),
        besides=_LIB,
        without=("netty-codec-native-quic",),  # 12 MB of native code for a transport that we don't use
    ),
    # Each the newest of its own: the provider needs only ICU's stable interface.
    JarGroup("icu", ("com.ibm.icu:icu4j:79.1", "com.ibm.icu:icu4j-localespi:77.1"), transitive=False),
    JarGroup(
        "iceberg",
        (
            f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}",
            "org.xerial:sqlite-jdbc:3.50.3.0",
            "org.postgresql:postgresql:42.7.8",  # a catalog on PostgreSQL instead
        ),
        transitive=False,
    ),
    JarGroup(
        "aws",
        (
            f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",  # Amazon's SDK
            f"org.apache.hadoop:hadoop-aws:{HADOOP}",  # Spark's own readers and checkpoints on S3
            f"software.amazon.awssdk:s3-transfer-manager:{AWS_SDK}",  # hadoop-aws needs these; the bundle lacks them
            f"software.amazon.awssdk:apache-client:{AWS_SDK}",
        ),
        transitive=False,
    ),
    # Iceberg's own REST catalog server, for tests. Hadoop's classes come from PySpark.
    JarGroup(
        "iceberg-rest",
        (
            f"org.apache.iceberg:iceberg-core:{ICEBERG_REST}",
            f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
            f"org.eclipse.jetty.compression:jetty-compression-server:{JETTY}",
            f"org.eclipse.jetty.compression:jetty-compression-gzip:{JETTY}",
            "org.apache.httpcomponents:httpcore:4.4.16",
            "org.slf4j:slf4j-simple:2.0.17",
            "org.xerial:sqlite-jdbc:3.50.3.0",
        ),
    ),
    JarGroup(
        "iceberg-rest",
        (
            f"org.apache.iceberg:iceberg-core:{ICEBERG_REST}:tests",
            f"org.apache.iceberg:iceberg-open-api:{ICEBERG_REST}:test-fixtures",
        ),
        transitive=False,
    ),
    # Debezium in Kafka Connect, which `make bench` measures beside capture: one class path for its JVM.
    JarGroup(
        "debezium",
        (
            f"io.debezium:debezium-connector-postgres:{DEBEZIUM}",
            f"org.apache.kafka:connect-runtime:{KAFKA}",
            f"org.apache.kafka:connect-json:{KAFKA}",
            # Those of connect-runtime's own Jetty, which a dependency of Jersey would raise in parts.
            f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{CONNECT_JETTY}",
            f"org.eclipse.jetty:jetty-security:{CONNECT_JETTY}",
            f"org.eclipse.jetty:jetty-session:{CONNECT_JETTY}",
            "org.slf4j:slf4j-simple:1.7.36",
        ),
    ),
    # Apicurio's Avro converter for Kafka Connect, a copy of Confluent's, for tests: what Connect does not have already.
    JarGroup(
        "debezium-avro",
        (f"io.apicurio:apicurio-registry-utils-converter:{APICURIO_CONVERTER}",),
        without=(
            *("connect-api", "connect-json", "kafka-clients", "lz4-java", "slf4j-api", "snappy-java", "zstd-jni"),
            *("jackson-annotations", "jackson-core", "jackson-databind", "jackson-datatype-jdk8"),
            # Of its converters for JSON.
            *("apicurio-registry-serdes-jsonschema-serde", "itu", "jackson-dataformat-yaml", "json", "snakeyaml"),
            "json-schema-validator",
        ),
    ),
    # Apicurio's schema registry as one archive, for tests.
    JarGroup("schema-registry", (f"io.apicurio:apicurio-registry-app:{APICURIO}:all@tar.gz",), transitive=False),
)


def relock(console: Console, path: Path = LOCK_FILE) -> None:
    """Writes the lock. Entries whose coordinates do not change are kept, because a released jar never changes. Raises
    StackError if an entry can't be resolved.
    """
    known = {jar.coordinates: jar for jar in read_lock(path).jars}
    places: dict[Coordinates, set[str]] = {}
    found: dict[str, set[Coordinates]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for wanted in WANTED:
            console.print(f"resolving {wanted.place}")
            found.setdefault(wanted.place, set()).update(_resolve(wanted, Path(folder) / "poms"))
            found[wanted.place] -= {at for place in wanted.besides for at in found[place]}
        for place, jars in found.items():
            for at in jars:
                places.setdefault(at, set()).add(place)
        write_lock((_locked(at, where, known, Path(folder)) for at, where in places.items()), path)
    console.print(f"{len(places)} jars in {path}")


def _resolve(wanted: JarGroup, cache: Path) -> set[Coordinates]:
    if not wanted.transitive:
        return set(map(Coordinates.parse, wanted.roots))
    maven = context(cache, mirror())
    roots = [maven.create_dependency(root, []) for root in wanted.roots]
    try:
        inputs, transitive = maven.resolver.resolve(roots)
    except (OSError, RuntimeError, ValueError) as error:
        raise StackError(
            f"{wanted.place} can't be resolved: {error}", "check the versions in spark_jobs/jars/relock.py"
        ) from error
    return {
        Coordinates(found.groupId, found.artifactId, found.version, found.classifier or "")
        for found in (*inputs, *transitive)
        if found.scope in (None, "compile", "runtime") and found.artifactId not in wanted.without
    }


def _locked(at: Coordinates, places: Iterable[str], known: dict[Coordinates, Jar], folder: Path) -> Jar:
    where = tuple(sorted(places))
    if at in known:
        return replace(known[at], places=where)
    file = MavenRepository(mirror()).fetch(Jar(at, "", 0, where), folder / str(at), lambda _: None)
    return Jar(at, hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size, where)
