# The gateway in a slim image, as a user without rights. Build: docker build -t completions-gateway .
# With OpenAI's vocabularies (exact counts of text) and OpenTelemetry: --build-arg EXTRAS=[tokens]
#
# The base is an exact version, not a digest: a digest is of one registry's copy and one architecture list, and is pinned
# where the image is built: --build-arg PYTHON=3.14.10-slim-trixie@sha256:...
ARG PYTHON=3.14.10-slim-trixie
FROM python:${PYTHON} AS build
ARG EXTRAS=""
# The time of the commit, for releases: useradd and the bill of materials use it instead of now.
ARG SOURCE_DATE_EPOCH
WORKDIR /src
# The dependencies by version and hash, in a layer of their own.
COPY requirements.lock requirements-extras.lock requirements-release.lock ./
RUN python -m venv /opt/gateway \
    && /opt/gateway/bin/pip install --no-cache-dir --no-compile --require-hashes -r "requirements${EXTRAS:+-extras}.lock"
COPY pyproject.toml PACKAGE.md LICENSE ./
COPY gateway gateway
# Byte code that names no time: an image of the same commit and base has the same bytes.
RUN /opt/gateway/bin/pip install --no-cache-dir --no-compile --no-deps . \
    && /opt/gateway/bin/python -m compileall -qf --invalidation-mode unchecked-hash /opt/gateway/lib
# The bill of materials: which packages the image holds, with versions and licences (CycloneDX).
RUN python -m venv /opt/sbom \
    && /opt/sbom/bin/pip install --no-cache-dir --require-hashes -r requirements-release.lock \
    && /opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-file /opt/gateway/sbom.cdx.json \
        /opt/gateway/bin/python

FROM python:${PYTHON}
ARG SOURCE_DATE_EPOCH
RUN groupadd --gid 10001 gateway \
    && useradd --uid 10001 --gid 10001 --create-home --home-dir /var/lib/gateway gateway
COPY --from=build /opt/gateway /opt/gateway
# The base has no byte code of the standard library, and the gateway's user could not write it: each start would compile.
RUN /opt/gateway/bin/python -c "import gateway.commands.serve, gateway.process.large_body_process, gateway.process.worker, \
    gateway.store.redis.store, gateway.store.sqlite.store"
ENV PATH=/opt/gateway/bin:$PATH PYTHONUNBUFFERED=1
# By number, so that a platform sees that it is not root.
USER 10001:10001
# The embedded store and the journal live below the working directory: mount a volume here.
WORKDIR /var/lib/gateway
VOLUME /var/lib/gateway
EXPOSE 8080
# It asks whatever port the gateway listens on.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s CMD ["python", "-m", "gateway.process.healthcheck"]
STOPSIGNAL SIGTERM
# Mount the configuration at /etc/gateway/gateway.yaml and pass its variables with --env, or its secrets as files.
CMD ["gateway", "serve", "--config", "/etc/gateway/gateway.yaml", "--host", "0.0.0.0"]
