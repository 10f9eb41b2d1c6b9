# A Python whose pip installs from a folder of wheels: builds here have no network.
ARG BASE
FROM ${BASE}
COPY dist/wheelhouse /wheels
RUN python3 -m venv /usr/local/python
ENV PATH=/usr/local/python/bin:$PATH \
    PIP_NO_INDEX=1 \
    PIP_FIND_LINKS=/wheels
