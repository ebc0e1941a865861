#!/usr/bin/env bash
# Builds the fuzz targets and runs them for a number of executions; logs to build/fuzz.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: native/fuzz/run.sh [--runs N] [--target decode|round_trip] [--seed S] [--driver] [--fresh]

  --runs N      executions of all targets together, 10000000 unless told
  --target T    only this target; by default decode gets nine tenths, round_trip the rest
  --seed S      of the random numbers, 1 unless told; without libFuzzer runs repeat exactly
  --driver      the driver of our own instead of libFuzzer, as without clang
  --fresh       forget what earlier runs have collected
TEXT
}

runs=10000000
targets=(decode round_trip)
seed=1
libfuzzer=auto
fresh=no
while [ $# -gt 0 ]; do
    case "$1" in
        --runs) runs=${2:?}; shift ;;
        --target) targets=("${2:?}"); shift ;;
        --seed) seed=${2:?}; shift ;;
        --driver) libfuzzer=no ;;
        --fresh) fresh=yes ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
[[ $runs =~ ^[0-9]+$ ]] || { usage >&2; exit 2; }

root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH="$root/.venv/bin:$PATH"
work=$root/build/fuzz
mkdir -p "$work"

# Whether a clang is there that brings libFuzzer and can compile the kernels.
can_libfuzzer() {
    command -v clang++ >/dev/null || return 1
    clang++ -std=c++20 -DELBOWROOM_X86=1 -fsyntax-only -I"$root/native" \
        "$root/native/common/isa.cpp" 2>"$work/probe.log" || return 1
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
        clang++ -x c++ -fsanitize=fuzzer,address,undefined - -o "$work/probe" 2>"$work/probe.log"
}
if [ "$libfuzzer" = auto ]; then
    libfuzzer=yes
    can_libfuzzer || libfuzzer=no
fi
if [ "$libfuzzer" = yes ]; then
    compiler=clang++
else
    compiler=${CXX:-g++}
    echo "fuzz: without libFuzzer: inputs are changed at random, without regard to what they reach." \
        "For more, install clang and its run-time library (Debian and Ubuntu:" \
        "apt install clang libclang-rt-14-dev, or the version of your clang)."
fi

build=$work/$(basename "$compiler")
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DELBOWROOM_PYTHON=OFF \
    -DELBOWROOM_FUZZ=ON >"$work/build.log" 2>&1 &&
    cmake --build "$build" >>"$work/build.log" 2>&1 || {
    tail -n 40 "$work/build.log" >&2
    echo "fuzz: the build failed (whole output: ${work#"$root"/}/build.log)" >&2
    exit 1
}

if [ "$fresh" = yes ]; then rm -rf "$work/corpus"; fi
rm -rf "$work/seeds"
mkdir -p "$work/corpus/decode" "$work/corpus/round_trip" "$work/findings"
"$build/native/fuzz/fuzz_seeds" "$work/seeds/decode" "$work/seeds/round_trip"

# Freed memory is kept from use for a while; a little of it keeps caches warm.
export ASAN_OPTIONS=quarantine_size_mb=16:handle_abort=1:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
[ "$libfuzzer" = yes ] || export UBSAN_OPTIONS=abort_on_error=1:$UBSAN_OPTIONS

summary=()
failed=no
for target in "${targets[@]}"; do
    share=$runs
    if [ ${#targets[@]} -gt 1 ]; then
        share=$((runs / 10))
        if [ "$target" = decode ]; then share=$((runs - runs / 10)); fi
    fi
    log=$work/$target.log
    # A process that is stopped for a while, so that others can measure, is not a hanging one.
    options=(-runs="$share" -seed="$seed" -max_len=4096 -timeout=1200 -rss_limit_mb=4096
        -print_final_stats=1 -artifact_prefix="$work/findings/$target-")
    echo "fuzz: $target, $share executions, log in ${log#"$root"/}"
    if [ "$libfuzzer" = yes ]; then
        # Weighing and shortening a corpus of thousands would take a third of the time.
        options+=(-entropic=0 -reduce_inputs=0)
        folders=("$work/corpus/$target" "$work/seeds/$target")
    else
        folders=("$work/seeds/$target")
    fi
    code=0
    "$build/native/fuzz/fuzz_$target" "${options[@]}" "${folders[@]}" >"$log" 2>&1 || code=$?
    count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    if [ $code -ne 0 ]; then
        failed=yes
        grep -E 'ERROR|SUMMARY|runtime error|fuzz:|written to' "$log" | head -n 10 >&2 || true
        summary+=("$target ${count:-?} executions, then a finding")
    else
        summary+=("$target $count executions")
    fi
done
line=$(printf '%s; ' "${summary[@]}")
name=$([ "$libfuzzer" = yes ] && echo libFuzzer || echo "own driver")
echo "fuzz: ${line%; } ($name, $("$compiler" --version | head -n 1))" | tee "$work/summary.log"
if [ "$failed" = yes ]; then
    echo "fuzz: findings in ${work#"$root"/}/findings; run the target with one to see it again" >&2
    exit 1
fi
