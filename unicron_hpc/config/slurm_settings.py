"""`slurm:` - the long names of sbatch's options, with `_` for `-`, and a few of ours."""

from __future__ import annotations

from typing import ClassVar, Literal

from unicron_hpc.config.fields import (
    Count,
    CountOrZero,
    Frozen,
    Hosts,
    Program,
    ShellLines,
    SlurmSignal,
    SlurmTime,
    Text,
)
from unicron_hpc.slurm import times


class SbatchOptions(Frozen):
    """Options handed to sbatch as they are; man sbatch describes them."""

    partition: Text | None = None
    """Partition, or several with commas between."""
    account: Text | None = None
    """Account that is charged."""
    qos: Text | None = None
    """Quality of service."""
    time: SlurmTime | None = None
    """Time limit, e.g. `90` (minutes), `72:00:00`, `3-12`."""
    time_min: SlurmTime | None = None
    """Shortest acceptable time limit."""
    begin: Text | None = None
    """Earliest start."""
    deadline: Text | None = None
    """Latest end."""
    reservation: Text | None = None
    """Reservation to use."""
    constraint: Text | None = None
    """Node features needed."""
    prefer: Text | None = None
    """Node features wished for."""
    exclude: Hosts | None = None
    """Nodes not to use, as a hostlist or a list."""
    nodelist: Hosts | None = None
    """Nodes that must be in the allocation."""
    exclusive: Literal["true", "user", "mcs", "topo"] | None = None
    """Do not share nodes: `true`, `user`, `mcs` or `topo`."""
    oversubscribe: bool = False
    """Share nodes with other jobs."""
    contiguous: bool = False
    """Nodes must be neighbours."""
    switches: Text | None = None
    """Most switches, `count[@time]`."""
    spread_job: bool = False
    """Spread the job over many nodes."""
    use_min_nodes: bool = False
    """Prefer fewer nodes where a range is given."""
    extra_node_info: Text | None = None
    """Sockets, cores and threads that nodes must have."""
    cpus_per_task: Count | None = None
    """CPUs of each agent, for all its ranks."""
    cpus_per_gpu: Count | None = None
    """CPUs for each GPU."""
    mincpus: Count | None = None
    """Fewest CPUs on a node."""
    cores_per_socket: Count | None = None
    """Fewest cores per socket."""
    sockets_per_node: Count | None = None
    """Fewest sockets per node."""
    threads_per_core: Count | None = None
    """Fewest threads per core."""
    core_spec: CountOrZero | None = None
    """Cores per node left to the system."""
    thread_spec: CountOrZero | None = None
    """Threads per node left to the system."""
    hint: Text | None = None
    """How tasks are bound to cores."""
    mem: Text | None = None
    """Memory per node, e.g. `64G`; `0` for all."""
    mem_per_cpu: Text | None = None
    """Memory per CPU."""
    mem_per_gpu: Text | None = None
    """Memory per GPU."""
    mcs_label: Text | None = None
    """Label of a multi-category security site."""
    mem_bind: Text | None = None
    """How tasks are bound to memory."""
    tmp: Text | None = None
    """Local disk needed on a node."""
    gres: Text | None = None
    """Generic resources of each node, e.g. `gpu:8`."""
    gres_flags: Text | None = None
    """How generic resources are bound."""
    gpus: Text | None = None
    """GPUs of the whole job."""
    gpus_per_node: Text | None = None
    """GPUs of each node, `[type:]count`."""
    gpus_per_socket: Text | None = None
    """GPUs of each socket."""
    gpus_per_task: Text | None = None
    """GPUs of each agent."""
    gpu_bind: Text | None = None
    """How tasks are bound to GPUs."""
    gpu_freq: Text | None = None
    """GPU frequency."""
    cpu_freq: Text | None = None
    """CPU frequency."""
    ntasks_per_gpu: Count | None = None
    """Tasks for each GPU."""
    tres_per_task: Text | None = None
    """Trackable resources of each agent (Slurm 23.11 and later)."""
    tres_bind: Text | None = None
    """How trackable resources are bound (Slurm 23.11 and later)."""
    licenses: Text | None = None
    """Licences."""
    dependency: Text | None = None
    """Jobs to wait for, e.g. `afterok:123`."""
    nice: int | None = None
    """Lower priority by this much."""
    priority: Text | None = None
    """Priority, for operators."""
    hold: bool = False
    """Submit in held state."""
    requeue: bool | None = None
    """Whether Slurm may requeue the job; the site's default when left out."""
    reboot: bool = False
    """Reboot the nodes first."""
    comment: Text | None = None
    """Comment kept with the job."""
    admin_comment: Text | None = None
    """Comment, for operators."""
    wckey: Text | None = None
    """Workload characterisation key."""
    mail_type: Text | None = None
    """Events to mail about, e.g. `END,FAIL`."""
    mail_user: Text | None = None
    """Who gets the mail."""
    signal: SlurmSignal | None = None
    """Signal before the time limit, e.g. `B:USR2@120`."""
    clusters: Text | None = None
    """Cluster to submit to."""
    cluster_constraint: Text | None = None
    """Features that a federated cluster must have."""
    container: Text | None = None
    """OCI container for the job."""
    container_id: Text | None = None
    """OCI container by identity."""
    network: Text | None = None
    """Network options."""
    power: Text | None = None
    """Power management options."""
    profile: Text | None = None
    """Profiling of tasks."""
    acctg_freq: Text | None = None
    """Sampling interval of accounting."""
    bb: Text | None = None
    """Burst buffer specification."""
    bbf: Text | None = None
    """Burst buffer specification file."""
    bcast: Text | None = None
    """Copy of the executable on the nodes."""
    batch: Text | None = None
    """Features that the batch script's node must have."""
    delay_boot: Text | None = None
    """How long nodes that must boot for the job are put off."""
    distribution: Text | None = None
    """How tasks are laid on the nodes."""
    get_user_env: bool = False
    """Load the user's login environment."""
    ignore_pbs: bool = False
    """Ignore PBS options."""
    kill_on_invalid_dep: bool | None = None
    """End the job when its dependency can never hold."""
    propagate: Text | None = None
    """Resource limits handed to the job."""
    segment: Text | None = None
    """Size of node blocks (Slurm 24.05 and later)."""
    stepmgr: bool = False
    """Manage steps on the job's own node (Slurm 24.05 and later)."""
    uid: Text | None = None
    """User, for operators."""
    gid: Text | None = None
    """Group, for operators."""
    verbose: bool = False
    """Let sbatch say more."""


class SlurmSettings(SbatchOptions):
    """What is asked of Slurm."""

    nodes: Count
    """Nodes that train (active nodes). The allocation is this plus `spares`."""
    spares: CountOrZero = 0
    """Nodes kept ready to take a lost node's place."""
    ranks_per_node: Count = 1
    """Ranks (training processes) on each node: one per GPU; on CPU as you like."""
    setup: ShellLines = ()
    """Shell lines run in the batch script before anything of ours, verbatim: `module load ...`."""
    python: Program | None = None
    """Python on the nodes: a path, or a name that `setup` puts into PATH; by default the submitter's own."""

    #: sbatch's options that cannot be given, and why.
    REFUSED: ClassVar[dict[str, str]] = {
        "array": "job arrays are not supported; submit each training by itself",
        "chdir": "the job starts in the folder from which it is submitted",
        "error": "output and errors go to <run_dir>/<name>-<job id>.out and to the run folder's logs",
        "export": "the job gets the submitter's environment without SLURM_*, SBATCH_*, PMI*; use `setup`",
        "export_file": "use `setup`",
        "help": "see man sbatch",
        "input": "the job reads no input",
        "job_name": "set `name` at the top level",
        "kill_on_bad_exit": "the job's steps outlive failed ranks, that is the point",
        "no_kill": "is always set: the job outlives its nodes",
        "no_requeue": "write `requeue: false`",
        "nodefile": "use `nodelist`",
        "ntasks": "one agent runs on each node; set `ranks_per_node`",
        "ntasks_per_core": "one agent runs on each node; set `ranks_per_node`",
        "ntasks_per_node": "one agent runs on each node; set `ranks_per_node`",
        "ntasks_per_socket": "one agent runs on each node; set `ranks_per_node`",
        "open_mode": "is always `append`",
        "output": "output goes to <run_dir>/<name>-<job id>.out; set `run_dir` at the top level",
        "overcommit": "one agent runs on each node; set `ranks_per_node`",
        "parsable": "use `unicron-sbatch --parsable`",
        "quiet": "use `unicron-sbatch --parsable`",
        "test_only": "use `unicron-sbatch --dry-run`",
        "wait": "use `unicron-sbatch --wait`",
        "wait_all_nodes": "agents join one by one; `recovery.startup_timeout` says how long is waited",
        "wrap": "the script is made by unicron-sbatch",
    }

    @property
    def total_nodes(self) -> int:
        """Nodes in the allocation: active ones and spares."""
        return self.nodes + self.spares

    @property
    def time_seconds(self) -> int | None:
        """The time limit in seconds; None for none given, or unlimited."""
        return None if self.time is None else times.parse_time(self.time)
