"""The packages of the wheel; everything else about it is in pyproject.toml, which can't add a folder to those found."""

from setuptools import find_packages, setup

NAMES = ("watershed", "cdc", "sinks", "spark_jobs")
# Alembic's scripts, a folder of their own in the repository, are data of `watershed` where it is installed.
SCRIPTS = {"watershed.migrations": "migrations", "watershed.migrations.versions": "migrations/versions"}

setup(
    packages=[*find_packages(include=[pattern for name in NAMES for pattern in (name, f"{name}.*")]), *SCRIPTS],
    package_dir=SCRIPTS,
)
