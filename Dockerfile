# Three images: `capture` runs cdc run and has no Java; `sinks` runs cdc sink run, with Java 17, Spark and its jars; `spark`
# is `sinks` for drivers and executors of Spark on Kubernetes.

FROM python:3.11-slim-bookworm AS base
RUN useradd --uid 10001 --create-home watershed \
 && install --directory --owner=watershed /var/lib/watershed
ENV PATH=/opt/watershed/bin:$PATH \
    CDC_CONFIG=/etc/watershed/watershed.yml \
    PYTHONUNBUFFERED=1


# As in the Makefile: pip installs uv by its hash, uv installs the rest by theirs.
FROM base AS tools
ENV VIRTUAL_ENV=/opt/watershed UV_NO_CACHE=1 UV_LINK_MODE=copy PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements.lock ./
RUN awk '/^(setuptools|uv)==/ { wanted = 1 } wanted { print } !/\\$/ { wanted = 0 }' requirements.lock >first.txt \
 && python -m venv /opt/watershed \
 && pip install --no-deps --require-hashes --requirement first.txt


FROM tools AS capture-packages
COPY deploy/docker/capture.lock ./
RUN uv pip install --require-hashes --requirement capture.lock
COPY . ./
RUN uv pip install --no-deps --no-build-isolation . \
 && uv pip uninstall uv setuptools


FROM tools AS sinks-packages
COPY deploy/docker/sinks.lock ./
RUN uv pip install --require-hashes --no-build-isolation \
    --config-settings-package pyspark:--build-option=--compression=stored --requirement sinks.lock
COPY . ./
# The jars that the sinks need; the other sets of the lock file are the development servers'.
ENV WATERSHED_CACHE=/opt/watershed/cache
RUN uv pip install --no-deps --no-build-isolation . \
 && python -c 'from spark_jobs.jars.resolver import resolve_sets; resolve_sets(["iceberg"])' \
 && uv pip uninstall uv setuptools


FROM base AS capture
COPY --from=capture-packages /opt/watershed /opt/watershed
USER 10001
WORKDIR /var/lib/watershed
ENTRYPOINT ["cdc"]
CMD ["run"]


FROM base AS sinks
# Debian keeps only the newest security release: a pinned version could not be had for long.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/*
COPY --from=sinks-packages /opt/watershed /opt/watershed
ENV WATERSHED_CACHE=/opt/watershed/cache
# Spark starts with half the processor time.
RUN python -m spark_jobs.archive_maker
USER 10001
WORKDIR /var/lib/watershed
ENTRYPOINT ["cdc"]
CMD ["sink", "run", "search", "cache", "warehouse"]


# For `cdc sink submit --master k8s://…` and the Spark operator: Spark starts driver and executors by this entry point.
FROM sinks AS spark
USER root
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/*
COPY deploy/docker/spark-on-kubernetes.sh /opt/watershed/bin/
# One folder for a class path; the cache has Maven's folders.
RUN install --directory /opt/watershed/jars \
 && find "$WATERSHED_CACHE/jars" -name '*.jar' -exec ln --symbolic --target-directory=/opt/watershed/jars {} +
USER 10001
ENV SPARK_HOME=/opt/watershed/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/watershed/bin/python
ENTRYPOINT ["spark-on-kubernetes.sh"]
CMD []
