# For tests that train: sourced, not run.

# skip <reason>: ends the test as skipped.
skip() {
  echo "skipped: $*"
  exit 77
}

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# make_tiny_corpus <file>: about 60 kB of made-up sentences with a long tail of lengths, documents separated by "%".
# The same bytes every time.
make_tiny_corpus() {
  awk 'BEGIN {
    split("the cat sat on a mat and saw some dogs run after small birds that sang old songs near water", word, " ")
    state = 12345
    for (d = 0; d < 300; ++d) {
      state = (state * 69069 + 1) % 4294967296
      length_ = 5 + int(state / 65536) % 20
      if (d % 25 == 0) length_ *= 15
      for (i = 0; i < length_; ++i) {
        state = (state * 69069 + 1) % 4294967296
        printf "%s ", word[1 + int(state / 65536) % 18]
      }
      print "\n%"
    }
  }' >"$1"
}

# write_tiny_deck <file> <steps>: a model of a few thousand parameters, sync, so that losses do not depend on ranks.
write_tiny_deck() {
  cat >"$1" <<DECK
mode = "sync"
seed = 7
servers = 1
batch_tokens = 600
[model]
width = 24
layers = 2
heads = 2
max_length = 256
[optimizer]
learning_rate = 3e-3
[schedule]
warmup_steps = 5
[log]
every = 1
[train]
steps = $2
[eval]
tokens = 2000
[sample]
tokens = 0
DECK
}

# losses <run folder>: "step loss" of every training step, from metrics.jsonl.
losses() {
  [[ -r $1/metrics.jsonl ]] || fail "$1/metrics.jsonl: cannot be read"
  awk '/"kind": *"step"/ {
    if (!match($0, /"step": *[0-9]+/)) next
    step = substr($0, RSTART, RLENGTH); sub(/.*: */, "", step)
    if (!match($0, /"loss": *[-+.0-9eE]+/)) next
    loss = substr($0, RSTART, RLENGTH); sub(/.*: */, "", loss)
    print step, loss
  }' "$1/metrics.jsonl"
}

# compare_losses <run> <run> <steps> <tolerance>: equal losses, relative.
compare_losses() {
  losses "$1" >"$work/losses-a"
  losses "$2" >"$work/losses-b"
  paste -d ' ' "$work/losses-a" "$work/losses-b" | awk -v steps="$3" -v tolerance="$4" '
    {
      if (NF != 4 || $1 != $3) { print "line " NR ": steps differ: " $0; bad = 1; exit }
      difference = $2 > $4 ? $2 - $4 : $4 - $2
      if (!($2 > 0) || !($4 > 0)) { print "line " NR ": no losses: " $0; bad = 1; exit }
      if (difference / $2 > worst) worst = difference / $2
      ++n
    }
    END {
      if (bad) exit 1
      if (n != steps) { print n " steps compared, not " steps; exit 1 }
      print n " steps, largest relative difference " worst + 0
      exit (worst > tolerance)
    }' || fail "losses of $1 and $2"
}
