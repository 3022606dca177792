"""The file systems of the warehouse's location, and what each client of an object store is configured with."""

from typing import Final

import pyarrow.fs as pa_fs
from pydantic import SecretStr

from cdc.config.warehouse_catalog import S3Config, is_s3

# Servers that speak S3's protocol have no regions, but clients ask Amazon for a bucket's region where none is given.
_ANY_REGION: Final = "us-east-1"


def secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


def file_system(uri: str, s3: S3Config | None = None) -> tuple[pa_fs.FileSystem, str]:
    """The file system of a URI, and the path in it. As Hadoop, and so Spark, reads a URI: what stands behind the scheme
    is the path as it is, not encoded."""
    if is_s3(uri):
        return _s3_file_system(s3 or S3Config()), uri.partition("://")[2]
    path = uri.removeprefix("file://")
    return (pa_fs.LocalFileSystem(), path) if path != uri else pa_fs.FileSystem.from_uri(uri)


def _s3_file_system(s3: S3Config) -> pa_fs.FileSystem:
    options = {
        "endpoint_override": s3.endpoint,
        "region": _region(s3),
        "access_key": secret(s3.access_key_id),
        "secret_key": secret(s3.secret_access_key),
        "session_token": secret(s3.session_token),
    }
    # Arrow uses path-style addresses with an endpoint of one's own, unless it is asked not to.
    virtual = {"force_virtual_addressing": True} if s3.endpoint and not s3.path_style else {}
    return pa_fs.S3FileSystem(**{name: value for name, value in options.items() if value}, **virtual)


def _region(s3: S3Config) -> str | None:
    return s3.region or (_ANY_REGION if s3.endpoint else None)


def iceberg_properties(location: str, s3: S3Config | None) -> dict[str, str]:
    """Properties of a catalog in Java and in Python: Iceberg names them alike, PyIceberg the region and the form of
    addresses differently."""
    if not is_s3(location):
        return {}
    found = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    if s3 is None:
        return found
    given = {
        "s3.endpoint": s3.endpoint,
        "client.region": _region(s3),
        "s3.access-key-id": secret(s3.access_key_id),
        "s3.secret-access-key": secret(s3.secret_access_key),
        "s3.session-token": secret(s3.session_token),
        "s3.path-style-access": "true" if s3.path_style else None,
        "s3.force-virtual-addressing": "true" if s3.endpoint and not s3.path_style else None,
    }
    return found | {name: value for name, value in given.items() if value}


def hadoop_settings(location: str, s3: S3Config | None) -> dict[str, str]:
    """Returns the settings of Spark's own readers, which read staged files, for this bucket and no other."""
    if not is_s3(location):
        return {}
    bucket = f"fs.s3a.bucket.{location.partition('://')[2].partition('/')[0]}"
    s3 = s3 or S3Config()
    given = {
        f"{bucket}.endpoint": s3.endpoint,
        f"{bucket}.endpoint.region": _region(s3),
        f"{bucket}.access.key": secret(s3.access_key_id),
        f"{bucket}.secret.key": secret(s3.secret_access_key),
        f"{bucket}.session.token": secret(s3.session_token),
        f"{bucket}.aws.credentials.provider": (
            "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider" if s3.session_token else None
        ),
        f"{bucket}.path.style.access": "true" if s3.path_style else None,
    }
    schemes = {"fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    return schemes | {name: value for name, value in given.items() if value}
