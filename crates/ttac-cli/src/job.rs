//! The processes that train together: one, or those that MPI started.

use ttac::Result;
use ttac::train::{Alone, Ranks};

/// The processes of a training run.
pub enum Job {
    Alone,
    #[cfg(feature = "mpi")]
    Mpi(mpi::environment::Universe),
}

impl Job {
    /// Joins the processes that MPI started, if that was asked for.
    pub fn start(with_mpi: bool) -> anyhow::Result<Self> {
        if with_mpi {
            Self::join()
        } else {
            Ok(Self::Alone)
        }
    }

    #[cfg(feature = "mpi")]
    fn join() -> anyhow::Result<Self> {
        use anyhow::Context;
        // The thread that trains is the one that talks.
        let universe = mpi::initialize_with_threading(mpi::Threading::Funneled);
        let (universe, _) = universe.context("MPI is running already in this process")?;
        Ok(Self::Mpi(universe))
    }

    #[cfg(not(feature = "mpi"))]
    fn join() -> anyhow::Result<Self> {
        anyhow::bail!("`--mpi` needs a program that is built with the feature `mpi`")
    }

    /// Ends this process's part. If it failed, the others are ended too: they would wait for it for ever.
    pub fn end(self, ended: anyhow::Result<()>) -> anyhow::Result<()> {
        match self {
            Self::Alone => ended,
            #[cfg(feature = "mpi")]
            Self::Mpi(universe) => {
                use mpi::traits::Communicator;
                if let Err(error) = &ended {
                    crate::report(error);
                    universe.world().abort(2);
                }
                ended
            }
        }
    }
}

#[cfg(feature = "mpi")]
impl Ranks for Job {
    fn rank(&self) -> usize {
        use mpi::traits::Communicator;
        match self {
            Self::Alone => Alone.rank(),
            Self::Mpi(universe) => universe.world().rank() as usize,
        }
    }

    fn count(&self) -> usize {
        use mpi::traits::Communicator;
        match self {
            Self::Alone => Alone.count(),
            Self::Mpi(universe) => universe.world().size() as usize,
        }
    }

    fn send(&self, values: &[f32]) -> Result<()> {
        use mpi::traits::{Communicator, Destination};
        if let Self::Mpi(universe) = self {
            universe.world().process_at_rank(0).send(values);
        }
        Ok(())
    }

    fn receive(&self, from: usize, into: &mut [f32]) -> Result<()> {
        use mpi::traits::{Communicator, Source};
        if let Self::Mpi(universe) = self {
            let world = universe.world();
            world.process_at_rank(from as i32).receive_into(into);
        }
        Ok(())
    }

    fn broadcast(&self, values: &mut [f32]) -> Result<()> {
        use mpi::traits::{Communicator, Root};
        if let Self::Mpi(universe) = self {
            universe.world().process_at_rank(0).broadcast_into(values);
        }
        Ok(())
    }
}

#[cfg(not(feature = "mpi"))]
impl Ranks for Job {
    fn rank(&self) -> usize {
        Alone.rank()
    }

    fn count(&self) -> usize {
        Alone.count()
    }

    fn send(&self, values: &[f32]) -> Result<()> {
        Alone.send(values)
    }

    fn receive(&self, from: usize, into: &mut [f32]) -> Result<()> {
        Alone.receive(from, into)
    }

    fn broadcast(&self, values: &mut [f32]) -> Result<()> {
        Alone.broadcast(values)
    }
}
