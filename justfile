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

image-cpu:
    docker build --file docker/Dockerfile.cpu --tag sparsetune:cpu .

image-cuda:
    docker build --file docker/Dockerfile.cuda --tag sparsetune:cuda .
