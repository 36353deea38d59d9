# shellcheck shell=bash
# To be sourced at the beginning of the scripts in this folder: asked for --help or -h, a script prints the comment at its
# head, and nothing else happens.
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
  exit 0
fi
