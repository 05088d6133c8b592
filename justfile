# Short names for what is done often. `just` alone lists them.

default:
    @just --list

# A server on loopback, a real matrix, its plan
quickstart:
    cargo run --release -- quickstart

# Everything that continuous integration runs
test:
    ./scripts/test

# The quick part: format, lints, unit and integration tests
check:
    cargo fmt --check
    cargo clippy --all-targets -- -D warnings
    cargo test

# A server with its data in .dev/data
serve *ARGS:
    cargo run --release -- serve --data .dev/data {{ARGS}}

# What devices and libraries are seen
doctor:
    cargo run --release -- doctor

bench:
    cargo bench

# The site, into target/book, and the pages that are made of the program
book:
    target/venv/bin/python scripts/documents.py --write
    mdbook build docs

# A Debian package of the release build, into target/packages
package:
    cargo build --release --locked
    packaging/build-deb target/release/sparsetune target/packages

image-cpu:
    docker build --file docker/Dockerfile.cpu --tag sparsetune:cpu .

image-cuda:
    docker build --file docker/Dockerfile.cuda --tag sparsetune:cuda .

# For hosts whose driver is older than R580
image-cuda12:
    docker build --file docker/Dockerfile.cuda --tag sparsetune:cuda12 --build-arg CUDA_IMAGE=nvidia/cuda:12.9.1-base-ubuntu24.04 --build-arg CUDA_PACKAGES=12-9 .
