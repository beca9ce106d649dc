# A Linux node: docker build -t chorus . (CPU), or --build-arg EXTRA=cuda13 and run with --gpus all (CUDA).
# docker run --network host -e CHORUS_TOKEN -v chorus:/data chorus
FROM python:3.11-slim

ARG EXTRA=cpu

ENV PATH=/opt/chorus/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CHORUS_STATE=/data/state \
    CHORUS_CACHE=/data/cache \
    HF_HOME=/data/huggingface

WORKDIR /src

COPY pyproject.toml README.md LICENSE ./
COPY src src

RUN python -m venv /opt/chorus \
    && /opt/chorus/bin/python -m pip install --no-cache-dir ".[${EXTRA}]" \
    && rm -rf /src/*

# A number instead of a name: whoever mounts a folder there can give it to this user beforehand.
RUN mkdir -p /data && chown 10001:10001 /data

WORKDIR /data
USER 10001:10001
VOLUME ["/data"]

# Strangers must prove the token at the first port; the others are mutual TLS. The API is at 8100 where a node serves.
EXPOSE 50150-50165 8100

HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 \
    CMD ["python", "-m", "chorus.cluster.health"]

ENTRYPOINT ["chorus"]
CMD ["join", "--log-dir", "/data/logs"]
