# The report in a container, without CUDA: docs/docker.md has the commands.
FROM python:3.11-slim

RUN useradd --create-home reader && mkdir /mtbert && chown reader /mtbert
USER reader
WORKDIR /mtbert
ENV PIP_NO_CACHE_DIR=1 PATH=/mtbert/.venv/bin:$PATH

# torch first, from its index of builds without CUDA: run_all.sh then finds its version installed.
COPY --chown=reader requirements.lock ./
RUN python -m venv .venv
RUN pip install --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' requirements.lock)"

COPY --chown=reader . .
RUN ./run_all.sh

EXPOSE 8000
CMD ["python", "-m", "http.server", "8000", "--directory", "build/report"]
