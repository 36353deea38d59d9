# For tests that start runs in the background and send their ranks signals: sourced behind training.sh, not run.
# `stopped`: processes to be killed at the end whatever happens.
stopped=""

clean_up() {
  # shellcheck disable=SC2086  # a list
  [[ -z $stopped ]] || kill -9 $stopped 2>/dev/null
  [[ -z ${job:-} ]] || kill -9 "$job" 2>/dev/null
  rm -rf "$work"
}
trap clean_up EXIT

# start <run> <ranks> <argument>...: in the background, as a session of its own; its number in `job`.
start() {
  local run=$1 ranks=$2
  shift 2
  # shellcheck disable=SC2086
  setsid $MPIRUN -n "$ranks" "$HAT" train "$deck" --data.path "$data" --output "$work/$run" "$@" >"$work/$run.log" 2>&1 </dev/null &
  job=$!
}

# ends_within <seconds>: waits for `job`; its exit code in `code`.
ends_within() {
  local i
  for ((i = 0; i < 10 * $1; ++i)); do
    kill -0 $job 2>/dev/null || break
    sleep 0.1
  done
  kill -0 $job 2>/dev/null && fail "still runs after $1 s: $(tail -n 3 "$work"/*.log)"
  wait $job
  code=$?
}

# says_one_line <run> <pattern>: exactly one line of hat's own, and it matches.
says_one_line() {
  local said
  said=$(grep '^hat: ' "$work/$1.log")
  (($(wc -l <<<"$said") == 1)) || fail "not one line: $said"
  grep -Eq "$2" <<<"$said" || fail "not '$2': $said"
  echo "$said"
}

# needs_processes: finding the process of a rank takes pgrep and Open MPI.
needs_processes() {
  command -v pgrep >/dev/null || skip "pgrep is not installed (Debian: procps)"
  grep -q 'Open MPI' <<<"$("$HAT" info --no-measure 2>/dev/null)" || skip "finds ranks by the environment of Open MPI"
}

ranks_of() { pgrep -f "^$HAT train .*--output $work/$1"; }

# process_of <run> <number>: the process of that rank.
process_of() {
  local pid
  for pid in $(ranks_of "$1"); do
    if tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -x "OMPI_COMM_WORLD_RANK=$2" >/dev/null; then
      echo "$pid"
      return
    fi
  done
  fail "no process of rank $2"
}

# trains <run>: waits until it has done three steps.
trains() {
  local i
  for ((i = 0; i < 600; ++i)); do
    [[ -e $work/$1/metrics.jsonl ]] && (($(steps "$1" step | wc -l) >= 3)) && return
    kill -0 $job 2>/dev/null || fail "ended by itself: $(tail -3 "$work/$1.log")"
    sleep 0.1
  done
  fail "no three steps in 60 s: $(tail -3 "$work/$1.log")"
}

# nobody_left <run>: soon no rank of it lives.
nobody_left() {
  local i
  for ((i = 0; i < 50; ++i)); do
    ranks_of "$1" >/dev/null || return
    sleep 0.1
  done
  fail "ranks live on: $(ranks_of "$1" | tr '\n' ' ')"
}

