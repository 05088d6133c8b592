#!/bin/sh
# Lets schemathesis loose on a running server: tests/schemathesis/run.sh http://127.0.0.1:8080
# Seeded and bounded; every check but what schemathesis.toml excepts, with its reasons; only that server is asked.
# The server should be on a temporary store: the run uploads, submits and deletes.
# SCHEMATHESIS names the program where it is not on the path. TOKEN is one of the server's with all rights, which it must have: the
# run creates tokens, after which a server that had none asks for one.
set -eu

url=${1:?usage: TOKEN=... run.sh URL}
token=${TOKEN:?usage: TOKEN=... run.sh URL}
here=$(cd "$(dirname "$0")" && pwd)
program=${SCHEMATHESIS:-schemathesis}
# It leaves caches in the folder it runs in.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

timeout 180 "$program" --config-file "$here/schemathesis.toml" run "$url/openapi.yaml" --url "$url" --no-color \
    --header "Authorization: Bearer $token"
