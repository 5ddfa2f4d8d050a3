#!/bin/bash
#SBATCH --job-name=sherd --nodes=2 --ntasks-per-node=4 --cpus-per-task=8 --time=24:00:00
#SBATCH --requeue --open-mode=append --output=sherd-%j.log
#SBATCH --signal=USR1@300
#
# sbatch recipes/cluster/slurm.sh RECIPE [ARGS...]: a run over MPI, one rank for each task.
#
# Needs Slurm's PMIx plugin (`srun --mpi=list` names pmix), and the program, the data and the output
# folder under the same paths on every node. SHERD names another program.
#
# Five minutes before the end of its time (--signal), Slurm sends SIGUSR1 to the steps: the run saves
# and ends with code 75. So it does at SIGTERM, which a preemption sends. Then this script puts the
# job back into the queue, and it continues from its newest checkpoint. Slurm itself requeues a
# preempted job (PreemptMode=REQUEUE) and one whose node has failed. Any other code is the job's.
#
# Tried with Slurm 22.05 and Open MPI 4.1 of Debian 12, on one machine with two tasks (26 November
# 2026): a job of a higher partition preempted the run, which saved, was requeued and continued from
# that step; so it did after SIGUSR1 before the time limit. Several nodes and GPUs are untried.
set -u
[ $# -ge 1 ] || { echo "slurm.sh: expected a recipe" >&2; exit 2; }
srun --mpi="${SHERD_MPI:-pmix}" --kill-on-bad-exit=0 "${SHERD:-sherd}" train "$@"
code=$?
if [ $code -eq 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
