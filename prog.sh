trap 'echo $(date +%T.%N) rank $OMPI_COMM_WORLD_RANK got TERM' TERM
trap 'echo $(date +%T.%N) rank $OMPI_COMM_WORLD_RANK got USR1; n=1' USR1
echo rank start $OMPI_COMM_WORLD_RANK $(hostname) ${SLURM_JOB_ID:-nojob}
for i in {1..300}; do sleep 0.1; done
