# For tests that train: sourced, not run. Sets `work` (removed at the end), `tools`, and the tiny corpus as data.h5.
set -u -o pipefail
source "$SOURCE_DIR/tests/tiny_run.sh"

tools=$BUILD_DIR/tests/tools
work=$(mktemp -d "${TMPDIR:-/tmp}/hat-training-XXXXXX")
trap 'rm -rf "$work"' EXIT

# make_data: $work/data.h5, about 300 documents with a long tail of lengths.
make_data() {
  make_tiny_corpus "$work/corpus.txt"
  "$HAT" tokenize "$work/corpus.txt" --separator % --output "$work/data.h5" >"$work/tokenize.log" 2>&1 ||
    fail "tokenize: $(cat "$work/tokenize.log")"
}

# train <run> <ranks> <argument>...: a run of the deck beside this file in $work/<run>. Its output is in $work/<run>.log.
# (mpirun reads standard input, which in a loop over lines is the rest of them.)
deck=$SOURCE_DIR/tests/training/tiny.toml
data=$work/data.h5
train() {
  local run=$1 ranks=$2
  shift 2
  # shellcheck disable=SC2086  # MPIRUN is a command with flags
  $MPIRUN -n "$ranks" "$HAT" train "$deck" --data.path "$data" --output "$work/$run" "$@" >"$work/$run.log" 2>&1 </dev/null ||
    fail "run $run ($ranks ranks: $*): $(grep "^hat:" "$work/$run.log" || tail -5 "$work/$run.log")"
}

# same_bits <run or checkpoint> <run or checkpoint>: every bit of every tensor, and the position.
same_bits() { "$tools/compare_runs" "$work/$1" "$work/$2" || fail "$1 and $2 differ"; }

# close_tensors <run> <run> <tolerance>: each tensor, norm of the difference over norm (but see compare_runs: key biases).
close_tensors() { "$tools/compare_runs" --tolerance "$3" --except attention.k.bias "$work/$1" "$work/$2" || fail "$1 and $2 differ by more than $3"; }

# steps <run> <key>: that number of every step line of metrics.jsonl, one a line.
steps() {
  awk -v key="\"$2\":" '/"kind":"step"/ {
    at = index($0, key)
    if (at) { rest = substr($0, at + length(key)); sub(/^\[/, "", rest); sub(/[\]},].*/, "", rest); print rest }
  }' "$work/$1/metrics.jsonl"
}

# loss_falls <run> <fraction>: the mean loss of the last five steps is below this fraction of the first loss.
loss_falls() {
  steps "$1" loss | awk -v fraction="$2" -v run="$1" '
    { loss[NR] = $1 }
    END {
      if (NR < 10) { print run ": only " NR " steps"; exit 1 }
      for (i = NR - 4; i <= NR; ++i) last += loss[i] / 5
      print run ": loss " loss[1] " to " last
      exit !(last < fraction * loss[1])
    }' || fail "the loss of $1 does not fall below $2 of its start"
}

# must_differ <run> <run>: losses further apart than any rounding.
must_differ() {
  (compare_losses "$work/$1" "$work/$2" "$(steps "$1" loss | wc -l)" 1e-4) >/dev/null 2>&1 &&
    fail "$1 and $2 have the same losses, but must not"
  return 0
}
