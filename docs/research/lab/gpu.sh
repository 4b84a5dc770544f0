#!/bin/sh
# What a GPU shows of speed and memory (docs/research/performance.md); every check is a file of JSON and a
# page in OUT.
#
#   sh docs/research/lab/gpu.sh OUT               all checks, about half an hour on an H100
#   sh docs/research/lab/gpu.sh OUT layer imdc    only these
#   DRY=1 sh docs/research/lab/gpu.sh OUT         the same commands on the CPU with a tiny shape
#
# KVPRESS_PYTHON is a Python with kvpress (`make kvpress` prints one); without it kvpress is left
# out. PYTHON is the Python that runs it.
set -eu

out=${1:?where to write}
shift
mkdir -p "$out"
program="${PYTHON:-python} docs/research/lab/speed.py"
checks=${*:-layer model infinipot imdc}
runs=${RUNS:-2}
kvpress=
if [ -n "${KVPRESS_PYTHON:-}" ]; then
    kvpress=",kvpress --kvpress-python $KVPRESS_PYTHON"
fi

# NAME SHAPE LENGTHS REST...; in a dry run the shape, lengths and sizes are tiny.
speed() {
    name=$1 shape=$2 lengths=$3
    shift 3
    echo "== $name: $shape, $lengths tokens: $*" >&2
    if [ -n "${DRY:-}" ]; then
        shape=tiny lengths=600,1200 runs=1
        set -- $(echo "$*" | sed -e 's/--budget [^ ]*/--budget 600/' -e 's/--keep [^ ]*/--keep 100,200/' \
            -e 's/--chunk-size [^ ]*/--chunk-size 100/' -e 's/--start [^ ]*/--start 50/' \
            -e 's/--layers 1//') --threads 1 --device cpu
    else
        set -- "$@" --dtype bfloat16 --device cuda
    fi
    # shellcheck disable=SC2086  # options with their values
    $program --shape $shape --lengths $lengths --runs $runs --limit 30 -n 16 \
        --report "$out/$name.html" --json "$@" >"$out/$name.json"
}

# Cascade: memory of 16k + 64 sinks in 4 sub-caches, stride 4k. The paper: one layer in 14.8% of the
# time of FlashAttention at 1M tokens, the whole model in 665 s on an A6000.
cascade="--method cascade --keep 16448 --chunk-size 4k --budget 20800 --chunk fixed --schedule fixed"
for check in $checks; do
    case $check in
    layer)
        speed layer llama-3.1-8b 16k,64k,256k,1M $cascade --layers 1 --against floor,full,transformers
        ;;
    model)
        speed model llama-3.1-8b 16k,64k,256k,1M $cascade --give-up 200 --against floor,full
        ;;
    infinipot)
        # The paper: 1 to 4% of the time in distillation (select_share), flat memory.
        speed infinipot mistral-7b 10k,30k,90k --method infinipot --set infinipot.alpha=0.5 \
            --budget 4k --against floor,transformers$kvpress
        ;;
    imdc)
        # The paper, at 32k tokens: up to 1.45 times as fast as memory of fixed size (SnapKV, chunks
        # of 1,024) and 1.26 (StreamingLLM, chunks of 8,192), with 23.3 and 16.2% less memory. It
        # leaves the sizes of memory open; m_0 is m_max / n there. Fixed and fixed is FM, linear and
        # fixed IM, linear and decremental IMDC. A cache is allocated for its budget, so what less
        # memory would do shows in peak_kv_tokens: run again with that as --budget for device bytes.
        both="--schedule fixed,linear --chunk fixed,decremental --keep 2k,4k,8k --budget 18k"
        speed imdc-snapkv llama-2-7b-32k 32k --method snapkv --chunk-size 1k --start 64 $both \
            --against floor
        speed imdc-streaming llama-2-7b-32k 32k --method streaming --chunk-size 8k --start 512 $both \
            --against floor
        ;;
    *)
        echo "no check $check; there are layer, model, infinipot, imdc" >&2
        exit 2
        ;;
    esac
done
