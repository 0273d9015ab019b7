# syntax=docker/dockerfile:1
# The image of `tistream spark`: the other services' image with Java and PySpark.
#   docker build -f infra/Dockerfile -t tistream . && docker build -f infra/spark.Dockerfile -t tistream-spark .
ARG BASE=tistream
FROM ${BASE}
USER root
# The extra's bounds are those of the distribution that is installed already.
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && /opt/tistream/bin/pip install --no-cache-dir --disable-pip-version-check 'tistream[spark]'
# A volume: the root folder may be read only.
ENV TISTREAM_SPARK_SCRATCH_FOLDER=/var/lib/tistream
USER 10001:10001
CMD ["spark"]
