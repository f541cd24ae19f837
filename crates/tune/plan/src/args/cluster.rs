//! The options of `ringloom tune cluster`.

use std::path::PathBuf;

use clap::Args;

/// Pods of a Kubernetes cluster.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "a switch of the command line is a bool to clap")]
pub struct ClusterArgs {
    /// What is measured where: see --example
    #[arg(required_unless_present = "example", value_name = "JOB.yaml")]
    pub job: Option<PathBuf>,

    /// Print a job file with comments
    #[arg(long, exclusive = true)]
    pub example: bool,

    /// Print the rights that the job needs, as a Role and what binds it, and measure nothing
    #[arg(long)]
    pub print_rbac: bool,

    /// Which cluster, and as whom [default: $KUBECONFIG, else ~/.kube/config, else the account of this pod]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// A context of that file, instead of its current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// Directory of the results [default: the first free of ringloom-report, ringloom-report-2, …]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Go on with an interrupted run: same job, same directory (by default the newest)
    #[arg(long)]
    pub resume: bool,

    /// Say what would be measured and how long that takes, and touch nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Print the report as a line of JSON, for programs
    #[arg(long)]
    pub json: bool,

    /// Print a line per second of each run
    #[arg(long)]
    pub interval: bool,

    /// Remove what a run has left that was killed, by the name that the next run tells, and measure nothing
    #[arg(long, value_name = "RUN", conflicts_with_all = ["resume", "dry_run", "out"])]
    pub remove: Option<String>,
}
