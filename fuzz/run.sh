#!/usr/bin/env bash
# Fuzzes: `fuzz/run.sh MINUTES [TARGET...]`, each target for that many minutes, one process on each core; all targets unless some
# are named, and several processes of one where there are cores to spare. With 0 minutes the corpus is only run once.
#
# Prints a line for each target, and fails if one failed. What failed lies in FUZZ_OUT/failures, and belongs in seeds/ with the
# change that mends it. Settings, by the environment:
#   FUZZ_BINARIES  folder of a program that was built already (`fuzz`); otherwise it is built, by a nightly toolchain
#   FUZZ_CORPUS    folder of what was found so far, one folder for each target (fuzz/corpus, at first from fuzz/corpus.tar.xz)
#   FUZZ_OUT       folder for logs and failures (target/fuzz/out)
#   FUZZ_JOBS      processes at once (as many as cores)
#   FUZZ_MERGE     0: the corpus is not minimised afterwards
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
minutes=${1:?usage: fuzz/run.sh MINUTES [TARGET...]}
shift
out=${FUZZ_OUT:-$here/../target/fuzz/out}
corpus=${FUZZ_CORPUS:-$here/corpus}
jobs=${FUZZ_JOBS:-$(nproc)}
platform=x86_64-unknown-linux-gnu

# Coverage of our code and that of the libraries; LLVM's pass alone, since the fuzzing engine brings the rest.
build() {
    local flag flags="-Cpasses=sancov-module"
    for flag in level=4 inline-8bit-counters pc-table trace-compares; do
        flags+=" -Cllvm-args=-sanitizer-coverage-$flag"
    done
    flags+=" -L native=$(dirname "$(g++ -print-file-name=libstdc++.a)")"
    cp -n "$here/../Cargo.lock" "$here/Cargo.lock"
    # The engine is C++: its library is linked in, so that the program runs where no compiler is.
    CARGO_TARGET_DIR=$here/../target/fuzz CXXSTDLIB=static=stdc++ RUSTFLAGS=$flags \
        cargo +nightly build --quiet --release --target "$platform" --manifest-path "$here/Cargo.toml"
}

if [ -n "${FUZZ_BINARIES:-}" ]; then
    program=$FUZZ_BINARIES/fuzz
else
    build
    program=$here/../target/fuzz/$platform/release/fuzz
fi
mapfile -t all < <(FUZZ_TARGET=list "$program" 2>/dev/null)
[ $# -gt 0 ] && targets=("$@") || targets=("${all[@]}")
for target in "${targets[@]}"; do
    [[ " ${all[*]} " == *" $target "* ]] || { echo "no target $target; there are: ${all[*]}" >&2; exit 2; }
done

rm -rf "$out"
mkdir -p "$out/failures" "$corpus"
out=$(cd "$out" && pwd) corpus=$(cd "$corpus" && pwd)
if [ -f "$here/corpus.tar.xz" ] && [ -z "$(ls "$corpus")" ]; then
    tar -xJf "$here/corpus.tar.xz" -C "$corpus"
fi
for target in "${targets[@]}"; do mkdir -p "$corpus/$target"; done

# Inputs of any length are read, but those that the engine makes are short: they are tried more often.
limits=(-rss_limit_mb=2048 -timeout=20 -max_len=16384 -dict="$here/words.dict")

# One process: `one TARGET NUMBER`. It goes on after a failure, since the next input may show another.
one() {
    local target=$1 log=$out/$1.$2.log temporary left end
    end=$((SECONDS + minutes * 60))
    temporary=$(mktemp -d "${TMPDIR:-/dev/shm}/fuzz.XXXXXX")
    for attempt in $(seq 20); do
        left=$((end - SECONDS))
        if [ "$minutes" != 0 ] && [ "$left" -le 0 ]; then break; fi
        local long=(-max_total_time="$left")
        [ "$minutes" = 0 ] && long=(-runs=0)
        if FUZZ_TARGET=$target TMPDIR=$temporary RAYON_NUM_THREADS=2 "$program" \
            "${limits[@]}" "${long[@]}" -print_final_stats=1 -artifact_prefix="$out/failures/$target-" \
            "$corpus/$target" "$here/seeds/$target" >>"$log" 2>&1; then break; fi
        echo "failed: attempt $attempt" >>"$log"
    done
    rm -rf "$temporary"
}

# What is left of the corpus if inputs that cover nothing new are taken out: `minimise TARGET`.
minimise() {
    local target=$1 temporary
    temporary=$(mktemp -d "${TMPDIR:-/dev/shm}/fuzz.XXXXXX")
    mkdir "$temporary/kept"
    if FUZZ_TARGET=$target TMPDIR=$temporary RAYON_NUM_THREADS=2 "$program" "${limits[@]}" -merge=1 \
        "$temporary/kept" "$here/seeds/$target" "$corpus/$target" >"$out/$target.merge.log" 2>&1; then
        rm -rf "${corpus:?}/$target"
        mv "$temporary/kept" "$corpus/$target"
    fi
    rm -rf "$temporary"
}

# Runs a function for each line of stdin, as many at once as there are jobs.
spread() {
    while read -r -a words; do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
        "$@" "${words[@]}" &
    done
    wait
}

count=${#targets[@]}
processes=$((minutes > 0 && jobs > count ? jobs : count))
for ((number = 0; number < processes; number++)); do
    echo "${targets[number % count]} $number"
done | spread one
if [ "$minutes" != 0 ] && [ "${FUZZ_MERGE:-1}" != 0 ]; then
    printf '%s\n' "${targets[@]}" | spread minimise
fi

failed=0
printf '%-20s %12s %8s %9s %7s %9s %9s\n' target executions per_s coverage inputs bytes failures
for target in "${targets[@]}"; do
    logs=("$out/$target".[0-9]*.log)
    sum() { { grep -h "stat::$1:" "${logs[@]}" || true; } | awk '{ sum += $2 } END { print sum + 0 }'; }
    coverage=$({ grep -ho 'cov: [0-9]*' "${logs[@]}" || true; } | awk '$2 > most { most = $2 } END { print most + 0 }')
    failures=$(find "$out/failures" -type f -name "$target-*" ! -name "$target-slow-unit-*" | wc -l)
    # A process that could not begin leaves no input behind.
    [ "$failures" = 0 ] && failures=$({ grep -hc '^failed: ' "${logs[@]}" || true; } | awk '{ sum += $1 } END { print sum + 0 }')
    [ "$failures" = 0 ] || failed=1
    inputs=$(find "$corpus/$target" -type f | wc -l)
    bytes=$(find "$corpus/$target" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum + 0 }')
    printf '%-20s %12s %8s %9s %7s %9s %9s\n' "$target" "$(sum number_of_executed_units)" \
        "$(sum average_exec_per_sec)" "$coverage" "$inputs" "$bytes" "$failures"
done
exit $failed
