//! Arguments of work on many machines: those of `bench` that are about it, and those of `work`.

use std::num::NonZeroU64;

use ttac_fleet::QueueSettings;

/// Where the work of several machines is given out.
#[derive(Debug, clap::Args)]
pub struct Fleet {
    /// Keep cells in a store, `s3://BUCKET/PREFIX` or `file:///DIR`, instead of a folder. The variables
    /// of other programs for S3 hold endpoint, region and credentials
    #[arg(long, value_name = "URL", conflicts_with = "out")]
    pub store: Option<String>,

    /// Do not run cells here: submit those that are not in the store to the workers at a broker,
    /// `nats://[USER:PASSWORD@]HOST[:PORT]`, several with commas between them
    #[arg(long, value_name = "URL", requires = "store", conflicts_with_all = ["shard", "dry_run"])]
    pub queue: Option<String>,

    /// Submit nothing: say what is done, waiting, running and failed, and which workers there are
    #[arg(long, requires = "queue")]
    pub status: bool,

    /// Show how far all workers have come, until every cell is done or has failed
    #[arg(long, requires = "queue", conflicts_with = "status")]
    pub wait: bool,

    /// Accept a store that holds results of other cells, for example of an earlier version of the grid
    #[arg(long, requires = "store")]
    pub extend: bool,

    /// After how long without a word from its worker a cell is given to another; workers say three times
    /// as often that they are alive
    #[arg(long, value_name = "SECONDS", default_value = "60", requires = "queue")]
    pub ack_wait: NonZeroU64,

    /// How many brokers of a cluster keep a copy of the queue
    #[arg(long, value_name = "N", default_value = "1", requires = "queue", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub replicas: u8,
}

impl Fleet {
    pub fn settings(&self) -> QueueSettings {
        QueueSettings {
            patience: std::time::Duration::from_secs(self.ack_wait.get()),
            replicas: usize::from(self.replicas),
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct Worker {
    /// The broker that gives out work, `nats://[USER:PASSWORD@]HOST[:PORT]`, several with commas between
    /// them
    #[arg(long, value_name = "URL", env = "TTAC_QUEUE", hide_env_values = true)]
    pub queue: String,

    /// The store of the results, `s3://BUCKET/PREFIX` or `file:///DIR`
    #[arg(long, value_name = "URL", env = "TTAC_STORE")]
    pub store: String,

    /// End when no work is left, instead of waiting for more
    #[arg(long)]
    pub until_empty: bool,

    /// Store a checkpoint of a long cell so often
    #[arg(long, value_name = "SECONDS", default_value = "300")]
    pub checkpoint_every: NonZeroU64,
}
