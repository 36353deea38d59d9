# shellcheck shell=bash
# To be sourced by the scripts in this folder that pass options on to `hat train`.
#
#   refuse_own SCRIPT "KEY..." OPTION...     ends the script when the options set a key that it sets itself in its runs
#   leave_to_user ARRAY OPTION...            takes the pairs `--KEY VALUE` out of the array whose keys the options set, and
#                                            those of keys that these exclude: what the user says counts

# keys_of OPTION...: the keys that options set, one a line.
keys_of() {
  local word
  for word in "$@"; do
    [[ $word == --[a-z]* ]] || continue
    word=${word%%=*}
    echo "${word/#--no-/--}"
  done
}

refuse_own() {
  local script=$1 own=$2 key
  shift 2
  for key in $own; do
    ! grep -qxF -- "--$key" <(keys_of "$@") || { echo "$script: --$key is set by tools/$script itself (--help)" >&2; exit 2; }
  done
}

leave_to_user() {
  local -n pairs=$1
  local given kept=() i group
  shift
  given=" $(keys_of "$@" | tr '\n' ' ')"
  for group in "--train.steps --train.tokens --train.epochs" "--batch_tokens --batch_sequences"; do
    for i in $group; do
      [[ $given == *" $i "* ]] && given+="$group " && break
    done
  done
  for ((i = 0; i < ${#pairs[@]}; i += 2)); do
    [[ $given == *" ${pairs[i]} "* ]] || kept+=("${pairs[@]:i:2}")
  done
  pairs=("${kept[@]}")
}
