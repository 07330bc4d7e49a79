# All programs in a container. hadolint has nothing to say about this file, but
# it has never been built.
#
#   docker build -t tff-personalization .
#   docker run --rm --init --user "$(id -u):$(id -g)" -v "$PWD:/work" \
#     tff-personalization experiments.run
#
# Results are written to the current folder. Add `-v FOLDER:/data -e
# PFL_DATA_DIR=/data` for data sets, and flags behind the program's name.
FROM python:3.11-slim-bookworm

# The packages first: they are 2.7 GB, and change less often than the code.
COPY requirements.lock /code/
RUN pip install --no-cache-dir --no-deps --require-hashes \
    -r /code/requirements.lock
COPY . /code

# Users of the machine, whom the container does not know, have no home in it.
ENV HOME=/tmp PYTHONPATH=/code PYTHONDONTWRITEBYTECODE=1
WORKDIR /work
ENTRYPOINT ["python", "-m"]
CMD ["experiments.run"]
