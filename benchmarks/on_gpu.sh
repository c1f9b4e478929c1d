#!/usr/bin/env bash
# All that is measured on a machine with an NVIDIA GPU, stage by stage, from a checkout that needs no installation.
#
#   bash benchmarks/on_gpu.sh OUT STAGE...        # for example: on_gpu.sh out record decode curves_1b test_time_compute
#   bash benchmarks/on_gpu.sh --list              # the stages, with about how long each takes on an H200
#
# Each stage writes into OUT, its log too, and leaves OUT/STAGE.done where it came to its end; such a stage is passed over,
# so the same command goes on where the last one was cut or failed. What must be importable: torch, transformers and
# the packages of pyproject.toml; for `servers_*` and two ways of `decode`, vLLM. Variables: PYTHON (python3), DATA (a folder
# of data sets, for the stages that ask real questions), UNTIL (seconds since 1970: no stage goes on beyond).
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

declare -A seconds=(
    [record]=490 [tests]=240 [decode]=230 [curves_1b]=110 [curves_smollm2]=110 [curves_8b]=130
    [test_time_compute]=900 [real_tasks]=190 [demo]=180 [card]=240
    [servers_default]=600 [servers_curve]=280 [servers_sweep]=1000 [servers_platforms]=540 [servers_attribution]=650
)

run_stage() { # NAME OUT: its command
    local out=$2
    case $1 in
    record) "$python" benchmarks/meter_accuracy.py --record "$out/meter_long.jsonl" ;;
    tests) "$python" -m pytest -q -p no:cacheprovider tests/gpu ;;
    decode) "$python" benchmarks/decode.py --target 8b --draft 1b --repeats 3 --json "$out/decode_8b.json" ;;
    curves_*)
        "$python" benchmarks/curves.py --sweep "${1#curves_}" --out "$out/sweep_${1#curves_}" --minutes 1.5 \
            --json "$out/$1.json" $([ -d "$out/sweep_${1#curves_}" ] && echo --resume) ;;
    test_time_compute | real_tasks)
        "$python" -m joulewise run "plans/$1.yaml" ${DATA:+--data "$DATA"} --out "$out/$1" \
            $([ -d "$out/$1" ] && echo --resume) ;;
    demo) "$python" -m joulewise run plans/demo.yaml --out "$out/demo" $([ -d "$out/demo" ] && echo --resume) ;;
    card) "$python" benchmarks/card.py --json "$out/card.json" --raw "$out/card.jsonl" ;;
    servers_*)
        "$python" benchmarks/servers.py --part "${1#servers_}" --program "$python" --work "$out/servers" \
            ${DATA:+--data "$DATA"} --json "$out/servers.json" ;;
    esac
}

if [ "${1:-}" = --list ]; then
    for name in "${!seconds[@]}"; do echo "$name ${seconds[$name]} s"; done | sort
    exit 0
fi
if [ $# -lt 2 ]; then
    echo "on_gpu.sh: give a folder and stages, or --list" >&2
    exit 2
fi
out=$1
shift
for name in "$@"; do
    if [ -z "${seconds[$name]:-}" ]; then
        echo "on_gpu.sh: no stage is called $name: see --list" >&2
        exit 2
    fi
done
mkdir -p "$out"
out=$(cd "$out" && pwd)

code=0
for name in "$@"; do
    if [ -e "$out/$name.done" ]; then
        echo "$name: done before ($(cat "$out/$name.done"))"
        continue
    fi
    limit=$((2 * seconds[$name]))
    if [ -n "${UNTIL:-}" ]; then
        left=$((UNTIL - $(date +%s)))
        if [ $left -lt 30 ]; then
            echo "$name: no time is left"
            code=3
            continue
        fi
        [ $left -lt $limit ] && limit=$left
    fi
    echo "$name: begins, $limit s at most; log: $out/$name.log"
    begun=$(date +%s)
    # A shell function cannot be told to stop by `timeout`; a shell of its own can.
    export -f run_stage
    export python DATA
    timeout -s INT -k 30 $limit bash -c 'run_stage "$1" "$2"' _ "$name" "$out" >"$out/$name.log" 2>&1
    ended=$?
    took=$(($(date +%s) - begun))
    echo "$name: exit code $ended after $took s"
    # A curve that misses its aim ends with 1, and is measured all the same.
    if [ $ended -eq 0 ] || [[ $name == curves_* && $ended -eq 1 ]]; then
        echo "exit code $ended after $took s" >"$out/$name.done"
    fi
    [ $ended -eq 0 ] || code=1
done
exit $code
