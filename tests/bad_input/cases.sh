# The cases of bad_input: sourced by it.
# Of errors that every rank finds alone, one or more of each group stay on several ranks, which must not all speak; the
# others run alone, without mpirun.
groups=(decks decks_that_are_none command_lines sizes combinations datasets few_documents outputs full_disks
  continuations damaged_checkpoints environments other_commands benches tokenizing)

# flip <file> <offset>: inverts a byte.
flip() {
  local byte
  byte=$(od -An -tu1 -j "$2" -N 1 "$1")
  printf "\\x$(printf %02x $((255 - byte)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# half <file> <copy>: its first half.
half() { head -c $(($(stat -c %s "$1") / 2)) "$1" >"$2"; }

cut_pieces="--split independent --shard.flops 1e9 --worker.emulate.speed 1e15 --length_scale 4"
make_inputs() {
  deck=$keep/good.toml
  data=$keep/data.h5
  write_tiny_deck "$deck" 4
  sed -i 's/^seed.*/seed = 7\ntimeout_s = 20/' "$deck"
  make_tiny_corpus "$keep/corpus.txt"
  "$HAT" tokenize "$keep/corpus.txt" --separator % --output "$data" >/dev/null || fail "tokenize"
  "$tools/make_dataset" "$keep/other.h5" 40,50,60,70 20 || fail "make_dataset"
  # shellcheck disable=SC2086
  $MPIRUN -n 3 "$HAT" train "$deck" --data.path "$data" --output "$keep/run" >"$work/good.log" 2>&1 ||
    fail "the good run: $(tail -3 "$work/good.log")"
  # shellcheck disable=SC2086
  $MPIRUN -n 3 "$HAT" train "$deck" --data.path "$data" --output "$keep/unbounded" --mode async --staleness unbounded \
    >"$work/good.log" 2>&1 || fail "the unbounded run: $(tail -3 "$work/good.log")"
  # Pieces of documents, as an emulated device of another model would have them.
  "$HAT" train "$deck" --data.path "$data" --output "$keep/pieces" $cut_pieces >"$work/good.log" 2>&1 ||
    fail "the run of pieces: $(tail -3 "$work/good.log")"
  checkpoint=checkpoints/step-00000004
  : >"$keep/empty.h5"
  echo "just text" >"$keep/text.h5"
  half "$data" "$keep/truncated.h5"
  cp "$keep/run/$checkpoint/server-0.h5" "$keep/foreign.h5"
  cp "$data" "$keep/superblock.h5"
  flip "$keep/superblock.h5" 2
  cp "$data" "$keep/flipped.h5"
  flip "$keep/flipped.h5" "$(grep -abo 'c.a.t' "$data" | head -1 | cut -d: -f1)"
}

decks() {
  local ranks=1
  ranks=3 deck_refused deck_unknown_key 'banana|unknown key' 'banana = 3'
  deck_refused deck_misspelt_key "batch_token|did you mean 'batch_tokens'" 'batch_token = 300'
  deck_refused deck_misspelt_in_section "model.widht|did you mean 'model.width'" 'model.widht = 8'
  deck_refused deck_wrong_section "optimizer.batch_tokens|did you mean 'batch_tokens'" 'optimizer.batch_tokens = 8'
  deck_refused deck_number_is_text 'unit_tokens|many' 'unit_tokens = "many"'
  deck_refused deck_fraction 'model.kv_heads|2.5' 'model.kv_heads = 2.5'
  deck_refused deck_flag 'deterministic|true or false|maybe' 'deterministic = maybe'
  deck_refused deck_list_for_one 'unit_tokens|not a list' 'unit_tokens = [1, 2]'
  deck_refused deck_misspelt_value "optimizer|did you mean 'adamw'" 'optimizer = "adamv"'
  deck_refused deck_pull_format "pull.format|bf16" 'pull.format = "fp16"'
  deck_refused deck_recompute "worker.recompute|inne|did you mean 'inner'" 'worker.recompute = "inne"'
  deck_refused deck_negative 'checkpoint.every|-3' 'checkpoint.every = -3'
  deck_refused deck_not_finite 'clip.norm|nan' 'clip.norm = nan'
  deck_refused deck_time_limit "time_limit|H:MM:SS|1:75" 'time_limit = "1:75"'
  deck_refused deck_time_limit_words "time_limit|two hours" 'time_limit = "two hours"'
  deck_refused deck_time_limit_negative "time_limit|-5" 'time_limit = -5'
  deck_refused deck_stall 'stall_after_s|-1' 'stall_after_s = -1'
  deck_refused deck_huge_number 'unit_tokens|99999999999999999999' 'unit_tokens = 99999999999999999999'
  deck_refused deck_no_value 'unit_tokens|value' 'unit_tokens ='
  deck_refused deck_no_equals "unit_tokens|expected '='" 'unit_tokens 5'
  deck_refused deck_key_twice 'seed|set twice' 'seed = 3'
  deck_refused deck_open_section "]|line 1" '[model'
  deck_refused deck_open_list 'barriers|expected|]' 'barriers = ["all"'
  ranks=3 deck_refused deck_open_string 'output|not closed' 'output = "out'
}

decks_that_are_none() {
  local ranks=1
  whole=1 deck_refused deck_empty 'no keys' ''
  whole=1 deck_refused deck_binary 'not a text file' '\x01\x02\x00\xff\xfe\x7f\x03'
  ranks=3 train_refused deck_missing 'nowhere.toml|no such deck' "$scratch/nowhere.toml" --output "$out"
  train_refused deck_folder "$scratch|folder" "$scratch" --output "$out"
  ranks=3 train_refused deck_hdf5 'data.h5|HDF5' "$data" --output "$out"
}

command_lines() {
  local ranks=1
  ranks=3 option_refused option_misspelt "command line|--model.widht|did you mean '--model.width'" --model.widht 8
  option_refused option_wrong_type 'command line|--batch_tokens|ten' --batch_tokens ten
  option_refused option_without_value 'command line|--seed' --seed
  option_refused option_twice 'command line|--output|given twice' --output "$out"
  option_refused option_precision "command line|--precision|'fp16'|did you mean 'fp32'" --precision fp16  # the deck's is overridden
  ranks=3 option_refused option_out_of_range 'command line|--optimizer.learning_rate|-1' --optimizer.learning_rate=-1
  option_refused flag_and_value 'command line|--pull.share|write --pull.share=false' --pull.share false
  option_refused negation_and_value 'command line|--no-trace|write --trace=true or =false' --no-trace true
  refused command_misspelt "trian|did you mean 'train'" "$HAT" trian
  refused command_missing 'command line|ubcommand' "$HAT"
}

sizes() {
  local ranks=1
  ranks=3 option_refused heads_do_not_divide 'command line|model.heads|5|24' --model.heads 5
  option_refused odd_heads 'model.heads|odd|even' --model.heads 8
  option_refused kv_heads 'model.kv_heads|3|4' --model.heads 4 --model.kv_heads 3
  option_refused kv_heads_gpt2 'model.kv_heads|gpt2' --model.family gpt2 --model.kv_heads 1
  ranks=3 option_refused unit_above_batch 'unit_tokens|601|600' --unit_tokens 601
  ranks=3 option_refused vocabulary 'command line|--model.vocabulary|100|257|data.h5' --model.vocabulary 100
  option_refused rope_base_one 'command line|--model.rope_base|above the lower end' --model.rope_base 1
  option_refused width_zero 'model.width|0' --model.width 0
  option_refused layers_zero 'model.layers|0' --model.layers 0
  option_refused batch_zero 'batch_tokens|0' --batch_tokens 0
  ranks=3 option_refused model_beyond_memory 'command line|model|memory' --model.width 65536 --model.layers 1000
  option_refused model_beyond_numbers 'model|memory' --model.width 1048576 --model.layers 10000 --model.mlp_width 1048576
  ranks=3 option_refused memory_too_small 'command line|--worker.memory_gib|needs|GiB|recompute = full|may use 0.000999 GiB' --worker.memory_gib 0.001
  option_refused memory_negative 'worker.memory_gib|-1' --worker.memory_gib=-1
  option_refused chunk_zero 'worker.chunk_tokens|0' --worker.chunk_tokens 0
  option_refused threads_zero 'worker.threads|0' --worker.threads 0
  option_refused threads_too_many 'worker.threads|5000|4096' --worker.threads 5000
  ranks=3 option_refused threads_above_cores "command line|--worker.threads|4096 threads|$(getconf _NPROCESSORS_ONLN) core" --worker.threads 4096
  ranks=3 option_refused long_refused 'data.long|data.h5' --data.long refuse --model.max_length 100
}

combinations() {
  local ranks=1
  ranks=3 option_refused servers_all_ranks 'command line|--servers|3' --servers 3
  ranks=3 option_refused servers_too_many 'command line|--servers|5|3' --servers 5
  ranks=3 option_refused emulated_speeds 'command line|--worker.emulate.speed|3 speeds|2 workers' --worker.emulate.speed 1e9,2e9,3e9
  ranks=3 option_refused emulated_disturbed 'command line|--worker.emulate.disturbed|no worker 2' --worker.emulate.speed 1e9 \
    --worker.emulate.stall_every_s 5 --worker.emulate.stall_for_s 1 --worker.emulate.disturbed 0,2
  ranks=3 option_refused barriers_match_nothing 'command line|--barriers|layers.9.mlp' --mode hybrid --barriers layers.9.mlp
  ranks=3 option_refused noise_block_unknown "command line|--sensitivity.noise_block|haed|did you mean 'head'" --sensitivity.noise_block haed --sensitivity.noise_scale 1 --sensitivity.noise_to 2
  ranks=2 option_refused split_on_one_worker 'command line|--split.policy|at least two workers' --split.policy always
  HAT_SERVERS=4 ranks=3 option_refused servers_of_environment 'environment|HAT_SERVERS|4 servers of 3 ranks'
  option_refused stall_without_length 'command line|--worker.emulate.stall_for_s|above 0' --worker.emulate.speed 1e9 --worker.emulate.stall_every_s 1
  option_refused sensitivity_in_sync 'barriers|sensitivity|hybrid' --barriers sensitivity
  option_refused limit_in_sync 'staleness.limit|unbounded' --staleness.limit 3
  option_refused barriers_no_pattern 'barriers|layers[0]' --mode hybrid --barriers 'layers[0]'
  option_refused barriers_in_async 'barriers|async' --mode async --barriers all
  option_refused sync_stale 'staleness|sync' --staleness 1
  option_refused unbounded_hybrid 'staleness|unbounded|async' --mode hybrid --staleness unbounded
  option_refused clip_global_hybrid 'clip|global' --mode hybrid --clip global
  option_refused deterministic_async 'deterministic|exact' --mode async --deterministic
  option_refused deterministic_unbounded 'deterministic|timing' --mode async --staleness unbounded --deterministic
  option_refused cut_for_no_device 'command line|--shard.flops|split' --split independent
  option_refused prefetch_depth 'prefetch.depth|from 0 to 2' --prefetch.depth 3
  option_refused dispatch 'dispatch|on_demand' --dispatch greedy
  option_refused trace_steps 'trace.steps|trace' --trace.steps 3
  ranks=3 option_refused two_ends 'train.steps|exactly one' --train.tokens 1000 --train.steps 5
  option_refused no_end 'train.steps|exactly one' --train.steps 0
  option_refused no_cuda 'device|CUDA' --device cuda
  train_refused no_data 'good.toml|data.path|not set' "$deck" --output "$out"
}

datasets() {
  local ranks=1
  ranks=3 option_refused validation_too_few 'command line|--eval.tokens|no validation document of|data.h5|1 token' --eval.tokens 1
  ranks=3 data_refused data_missing 'no such' "$scratch/nowhere.h5"
  data_refused data_empty 'empty' "$keep/empty.h5"
  data_refused data_text 'not an HDF5 file' "$keep/text.h5"
  ranks=3 data_refused data_truncated 'truncated' "$keep/truncated.h5"
  data_refused data_foreign 'not a dataset' "$keep/foreign.h5"
  data_refused data_superblock 'HDF5' "$keep/superblock.h5"
  data_refused data_folder 'folder' "$keep/run"
  "$tools/make_dataset" "$scratch/first.h5" 0,5,6,7
  "$tools/make_dataset" "$scratch/middle.h5" 5,0,6,7
  "$tools/make_dataset" "$scratch/last.h5" 5,6,7,0
  "$tools/make_dataset" "$scratch/all.h5" 0,0,0,0
  "$tools/make_dataset" "$scratch/validation.h5" 5,6,7 4,0
  ranks=3 data_refused document_first_empty '/train|document 0|no tokens' "$scratch/first.h5"
  data_refused document_middle_empty '/train|document 1|no tokens' "$scratch/middle.h5"
  data_refused document_last_empty '/train|document 3|no tokens' "$scratch/last.h5"
  data_refused documents_all_empty '/train|all 4 documents' "$scratch/all.h5"
  ranks=3 data_refused document_validation_empty '/validation|document 1|no tokens' "$scratch/validation.h5"
}

few_documents() {
  "$tools/make_dataset" "$scratch/one.h5" 300
  "$tools/make_dataset" "$scratch/three.h5" 300,20,30
  "$tools/make_dataset" "$scratch/no-validation.h5" 30,40,50 none
  "$tools/make_dataset" "$scratch/no-training.h5" none
  data_refused documents_one '/train|1 document|2 workers' "$scratch/one.h5"
  ranks=6 data_refused documents_fewer_than_workers '/train|3 documents|5 workers' "$scratch/three.h5"
  data_refused documents_no_validation '/validation|no documents' "$scratch/no-validation.h5"
  data_refused documents_no_training '/train|no documents' "$scratch/no-training.h5"
}

outputs() {
  local ranks=1
  ranks=3 train_refused output_is_file 'corpus.txt|output|not a folder' "$deck" --data.path "$data" --output "$keep/corpus.txt"
  train_refused output_below_file 'corpus.txt|output|not a folder' "$deck" --data.path "$data" --output "$keep/corpus.txt/run"
  ranks=3 train_refused output_proc '/proc/hat-run|output|cannot' "$deck" --data.path "$data" --output /proc/hat-run
  ranks=3 train_refused output_holds_run 'run|output|already holds a run' "$deck" --data.path "$data" --output "$keep/run"
  train_refused output_empty_name 'output|empty' "$deck" --data.path "$data" --output ''
  if ((EUID == 0)); then
    skip_case output_read_only "root may write into read-only folders; output_proc and output_read_only_disk stand in"
  else
    mkdir "$scratch/locked" && chmod 500 "$scratch/locked"
    train_refused output_read_only 'locked|output|cannot write' "$deck" --data.path "$data" --output "$scratch/locked/run"
  fi
}

# mount_small <size>: a file system of that size at $scratch/disk.
mount_small() {
  mkdir -p "$scratch/disk"
  mount -t tmpfs -o "size=$1" tmpfs "$scratch/disk" 2>/dev/null && mounted=$scratch/disk
}
unmount_small() {
  umount "$mounted"
  mounted=""
}

full_disks() {
  local disk=$scratch/disk
  if ! mount_small 64k; then
    for case_name in output_full output_full_later_0 output_full_later_4 output_full_later_8 output_read_only_disk tokenize_full; do
      skip_case $case_name "cannot mount a small file system here (not root, or a container without the right)"
    done
    return
  fi
  dd if=/dev/zero of="$disk/filler" bs=4k count=16 status=none 2>/dev/null
  train_refused output_full 'disk/run|output|full' "$deck" --data.path "$data" --output "$disk/run"
  rm -rf "$disk/filler" "$disk/run"
  # Room for the start, none for the checkpoint; nor, when the disk is full to its last page, for a note of the failure.
  local filler
  for filler in 0 4 8; do
    dd if=/dev/zero of="$disk/filler" bs=1k count=$filler status=none 2>/dev/null
    train_refused output_full_later_$filler 'disk/run' "$deck" --data.path "$data" --output "$disk/run"
    [[ $(find "$disk" -name complete | wc -l) == 0 ]] || wrong output_full_later_$filler "a checkpoint that cannot be whole"
    rm -rf "$disk/filler" "$disk/run"
  done
  awk 'BEGIN { for (i = 0; i < 200000; ++i) print "text", i, "\n%" }' >"$work/long.txt"
  refused tokenize_full 'disk/d.h5' "$HAT" tokenize "$work/long.txt" --separator % --output "$disk/d.h5"
  [[ -z $(ls "$disk") ]] || wrong tokenize_full "left $(ls "$disk")"
  mount -o remount,ro "$disk"
  train_refused output_read_only_disk 'disk/run|output|cannot write' "$deck" --data.path "$data" --output "$disk/run"
  unmount_small
}

continue_refused() {
  local case_name=$1 words=$2
  shift 2
  train_refused "$case_name" "$words" "$deck" --data.path "${resume_data:-$data}" --output "$keep/${resume_run:-run}" \
    --resume --train.steps "${resume_steps:-8}" "$@"
}

continuations() {
  local ranks=1
  ranks=3 train_refused resume_without_run 'out|resume|no such run' "$deck" --data.path "$data" --output "$out" --resume
  mkdir -p "$scratch/hollow/checkpoints"
  ranks=3 train_refused resume_without_checkpoint 'hollow|resume|no complete checkpoint' "$deck" --data.path "$data" --output "$scratch/hollow" --resume
  ranks=3 continue_refused resume_other_width 'step-00000004|model' --model.width 28
  continue_refused resume_other_layers 'step-00000004|model' --model.layers 3
  continue_refused resume_other_family 'step-00000004|model' --model.family gpt2
  ranks=3 resume_data=$keep/other.h5 continue_refused resume_other_data 'step-00000004|data.path|other.h5'
  continue_refused resume_other_seed 'step-00000004|seed|7|8' --seed 8
  continue_refused resume_other_batch 'step-00000004|batch_tokens|600|500' --batch_tokens 500
  continue_refused resume_other_length 'step-00000004|model.max_length|256|128' --model.max_length 128
  continue_refused resume_other_kv_heads 'step-00000004|model.kv_heads|was' --model.kv_heads 1
  continue_refused resume_other_mlp_width 'step-00000004|model.mlp_width|was' --model.mlp_width 40
  continue_refused resume_other_tied 'step-00000004|model.tied|was' --model.tied
  continue_refused resume_other_norm_epsilon 'step-00000004|model.norm_epsilon|1e-05|1e-06' --model.norm_epsilon 1e-6
  continue_refused resume_other_rope_base 'step-00000004|model.rope_base|10000|5000' --model.rope_base 5000
  # Bounded after unbounded: versions do not belong to steps.
  ranks=3 resume_run=unbounded continue_refused resume_unbounded_as_async 'unbounded/|step-00000004|staleness|unbounded' --mode async
  resume_run=unbounded continue_refused resume_unbounded_as_sync 'unbounded/|step-00000004|staleness|unbounded'
  resume_run=unbounded continue_refused resume_unbounded_as_hybrid 'unbounded/|step-00000004|staleness|unbounded' --mode hybrid
  # shellcheck disable=SC2086  # a list of options
  resume_run=pieces continue_refused resume_other_scale 'step-00000004|length_scale|4|8' ${cut_pieces/scale 4/scale 8}
  # shellcheck disable=SC2086
  resume_run=pieces continue_refused resume_other_cost 'step-00000004|cost_of|own|llama_1b' $cut_pieces --cost_of llama_1b
  ranks=3 continue_refused resume_other_optimizer 'step-00000004|optimizer|adamw|sgd' --optimizer sgd
  if command -v flock >/dev/null; then
    local held
    exec {held}<"$keep/run"  # as another process that trains there
    flock -n "$held"
    ranks=3 continue_refused resume_of_running 'run|output|another hat process'
    exec {held}<&-
  else
    skip_case resume_of_running "flock is not installed (Debian: util-linux)"
  fi
}

# damaged <name>: a copy of the good run in $scratch/<name>, its checkpoint in `copy`.
damaged() {
  cp -r "$keep/run" "$scratch/$1"
  copy=$scratch/$1/$checkpoint
}

# all_refuse <name> <words>: continuing, eval, generate and inspect of the run $scratch/<name>.
all_refuse() {
  local damage
  damage=$(fingerprint_of "$scratch/$1")
  train_refused "$1_resume" "$2" "$deck" --data.path "$data" --output "$scratch/$1" --resume --train.steps 8
  refused "$1_eval" "$2" "$HAT" eval "$scratch/$1"
  refused "$1_generate" "$2" "$HAT" generate "$scratch/$1" --tokens 5
  refused "$1_inspect" "$2" "$HAT" inspect "$scratch/$1/$checkpoint"
  [[ $(fingerprint_of "$scratch/$1") == "$damage" ]] || wrong "$1" "files of the damaged run changed"
}

# parameter_offset <server file>: where the values of norm.weight of the head lie: before training they are all 1.0, and
# four steps at small rates leave their upper bytes 0x3f: the longest run of such values begins there.
parameter_offset() {
  od -An -v -tx4 -w4 "$1" | awk '
    { one = /3f[78]/; if (!one) { n = 0; next } if (++n > best) { best = n; at = NR - n } }
    END { print 4 * (at + 1) }'
}

damaged_checkpoints() {
  damaged server_missing && rm "$copy/server-0.h5"
  all_refuse server_missing 'server-0.h5'
  damaged server_truncated && half "$keep/run/$checkpoint/server-0.h5" "$copy/server-0.h5"
  all_refuse server_truncated 'server-0.h5|truncated'
  damaged server_foreign && cp "$data" "$copy/server-0.h5"
  all_refuse server_foreign 'server-0.h5'
  # A byte of the first parameters in the file, so that eval and generate, which read no optimizer state, meet it too.
  damaged server_flipped && flip "$copy/server-0.h5" "$(parameter_offset "$copy/server-0.h5")"
  all_refuse server_flipped 'server-0.h5'
  damaged master_truncated && half "$keep/run/$checkpoint/checkpoint.h5" "$copy/checkpoint.h5"
  all_refuse master_truncated 'checkpoint.h5'
  damaged master_empty && : >"$copy/checkpoint.h5"
  all_refuse master_empty 'checkpoint.h5'
  damaged master_foreign && cp "$data" "$copy/checkpoint.h5"
  all_refuse master_foreign 'checkpoint.h5'
  damaged unfinished && rm "$copy/complete"
  all_refuse unfinished 'complete'
}

environments() {
  local ranks=1
  ranks=3 HAT_BATCH_TOKEN=5 option_refused variable_misspelt "environment|HAT_BATCH_TOKEN|did you mean 'HAT_BATCH_TOKENS'"
  HAT_UNIT_TOKENS=ten option_refused variable_wrong_type 'environment|HAT_UNIT_TOKENS|ten'
  HAT_UNIT_TOKENS='' option_refused variable_empty 'environment|HAT_UNIT_TOKENS|empty'
  # srun without PMIx: each of four processes believes to be alone.
  refused singleton_of_slurm 'environment|SLURM_NTASKS|4' env -u OMPI_COMM_WORLD_SIZE -u PMIX_RANK SLURM_NTASKS=4 \
    "$HAT" train "$deck" --data.path "$data" --output "$out"
}

other_commands() {
  refused eval_no_run 'nowhere' "$HAT" eval "$scratch/nowhere"
  refused eval_data_as_model 'data.h5' "$HAT" eval "$data"
  refused eval_data_missing 'nowhere.h5' "$HAT" eval "$keep/run" --data "$scratch/nowhere.h5"
  refused eval_data_truncated 'truncated.h5|truncated' "$HAT" eval "$keep/run" --data "$keep/truncated.h5"
  refused eval_data_foreign 'foreign.h5|not a dataset' "$HAT" eval "$keep/run" --data "$keep/foreign.h5"
  refused eval_too_few 'command line|--tokens|no validation document of|1 token' "$HAT" eval "$keep/run" --tokens 1
  refused generate_no_run 'nowhere' "$HAT" generate "$scratch/nowhere"
  refused generate_no_tokens 'tokens|0' "$HAT" generate "$keep/run" --tokens 0
  refused generate_text 'text.h5' "$HAT" generate "$keep/text.h5"
  refused inspect_missing 'nowhere' "$HAT" inspect "$scratch/nowhere"
  refused inspect_empty 'empty.h5|empty' "$HAT" inspect "$keep/empty.h5"
  refused inspect_text 'text.h5|HDF5' "$HAT" inspect "$keep/text.h5"
  refused inspect_truncated 'truncated.h5|truncated' "$HAT" inspect "$keep/truncated.h5"
  refused inspect_server_file 'foreign.h5|checkpoint' "$HAT" inspect "$keep/foreign.h5"
  refused inspect_flipped_token 'flipped.h5|tokens|checksum' "$HAT" inspect "$keep/flipped.h5"
  refused info_servers 'command line|--servers|5 servers' "$HAT" info --servers 5 --no-measure
  refused info_misspelt "did you mean '--json'" "$HAT" info --jsn
}

benches() {
  refused bench_misspelt "trian|did you mean 'train'" "$HAT" bench trian
  refused bench_option_misspelt "--lenths|did you mean '--lengths'" "$HAT" bench train "$deck" --lenths fixed
  refused bench_no_runs 'runs|0' "$HAT" bench train "$deck" --runs 0
  refused bench_length_zero 'length|0' "$HAT" bench train "$deck" --length 0
  refused bench_lengths "lengths|fixd|long_tail" "$HAT" bench train "$deck" --lengths fixd
  refused bench_beyond_length 'good.toml|model.max_length|256|300' "$HAT" bench train "$deck" --length 300
  refused bench_beyond_memory 'model|memory' "$HAT" bench train "$deck" --length 64 --model.width 65536 --model.layers 1000
  refused bench_heads 'model|heads|5' "$HAT" bench train "$deck" --length 64 --model.heads 5
  refused bench_no_deck 'nowhere.toml' "$HAT" bench gemm "$scratch/nowhere.toml"
  refused bench_policy_word "command line|--policies|'on_demand/sync:sometimes'|split.policy|auto, never, always" \
    "$HAT" bench longtail "$SOURCE_DIR/inputs/bench_longtail.toml" --policies on_demand/sync:sometimes
  refused bench_staleness 'command line|--staleness|999' "$HAT" bench longtail "$SOURCE_DIR/inputs/bench_longtail.toml" --staleness 1,999
  refused bench_one_rank "command line|'static/sync' needs 1 rank beside 1 server, and there is 1 rank" \
    "$HAT" bench longtail "$SOURCE_DIR/inputs/bench_longtail.toml"
  refused bench_shape '--shapes|1,2' "$HAT" bench gemm --shapes 1,2
  refused bench_attention_heads '--kv_heads|3|4' "$HAT" bench attention --heads 4 --kv_heads 3
  refused bench_attention_length 'length|ten' "$HAT" bench attention --lengths ten
}

tokenizing() {
  printf '{"text": "one"}\n{"text": "two"\n' >"$scratch/bad.jsonl"
  printf '{"text": "one"}\n{"body": "two"}\n' >"$scratch/key.jsonl"
  printf '{"text": "one"}\n{"text": 2}\n' >"$scratch/type.jsonl"
  gzip -c "$keep/corpus.txt" | head -c 2000 >"$scratch/cut.txt.gz"
  : >"$scratch/nothing.txt"
  mkdir "$scratch/no-files"
  refused jsonl_bad 'bad.jsonl:2' "$HAT" tokenize "$scratch/bad.jsonl" --output "$out"
  refused jsonl_no_key 'key.jsonl:2|text' "$HAT" tokenize "$scratch/key.jsonl" --output "$out"
  refused jsonl_no_text 'type.jsonl:2|text' "$HAT" tokenize "$scratch/type.jsonl" --output "$out"
  refused gzip_cut 'cut.txt.gz' "$HAT" tokenize "$scratch/cut.txt.gz" --separator % --output "$out"
  refused input_missing 'nowhere.txt' "$HAT" tokenize "$scratch/nowhere.txt" --output "$out"
  refused input_empty 'nothing.txt' "$HAT" tokenize "$scratch/nothing.txt" --output "$out"
  refused input_folder_empty 'no-files' "$HAT" tokenize "$scratch/no-files" --output "$out"
  refused tokenize_output_exists 'data.h5|exists' "$HAT" tokenize "$keep/corpus.txt" --separator % --output "$data"
  refused tokenize_output_folder 'output|folder' "$HAT" tokenize "$keep/corpus.txt" --separator % --output "$keep/run"
  mkfifo "$scratch/pipe"
  refused tokenize_output_pipe 'output|pipe|not a regular file' "$HAT" tokenize "$keep/corpus.txt" --separator % --output "$scratch/pipe" --force
  refused tokenize_output_nowhere 'output|nowhere' "$HAT" tokenize "$keep/corpus.txt" --separator % --output "$scratch/nowhere/d.h5"
  refused tokenize_validation_all '--validation|1' "$HAT" tokenize "$keep/corpus.txt" --separator % --validation 1 --output "$out"
  refused tokenize_validation 'validation|2' "$HAT" tokenize "$keep/corpus.txt" --validation 2 --output "$out"
}
