# The gateway in a slim image, as a user without rights. Build: docker build -t completions-gateway .
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md ./
COPY gateway gateway
RUN python -m venv /opt/gateway && /opt/gateway/bin/pip install --no-cache-dir .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/gateway gateway
COPY --from=build /opt/gateway /opt/gateway
ENV PATH=/opt/gateway/bin:$PATH PYTHONUNBUFFERED=1
USER gateway
# The embedded store lives below the working directory: mount a volume here.
WORKDIR /var/lib/gateway
VOLUME /var/lib/gateway
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
STOPSIGNAL SIGTERM
# Mount the configuration at /etc/gateway/gateway.yaml and pass its variables with --env.
CMD ["gateway", "serve", "--config", "/etc/gateway/gateway.yaml", "--host", "0.0.0.0"]
