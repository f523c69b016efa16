//! Training by several processes that share every step.
//!
//! A batch is cut into a fixed number of shards. Each has the norm statistics of its own images, and its gradient is that of its own mean
//! loss. Gradients are added in the order of the shards, whichever process computed them, so the bits of a run depend on the number of shards
//! and not on the number of processes. The running statistics that are kept are those of the first shard.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};

use crate::{Error, Result};

/// The processes that train together. The first one, of rank 0, adds up what the others send.
pub trait Ranks {
    /// The rank of this process, from zero.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn count(&self) -> usize;

    /// Sends numbers to the first process.
    fn send(&self, values: &[f32]) -> Result<()>;

    /// Receives the numbers that a process sent to the first one, as many as there is room for.
    fn receive(&self, from: usize, into: &mut [f32]) -> Result<()>;

    /// Replaces the numbers of every process by those of the first.
    fn broadcast(&self, values: &mut [f32]) -> Result<()>;
}

/// A single process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Ranks for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        1
    }

    fn send(&self, _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn receive(&self, _: usize, _: &mut [f32]) -> Result<()> {
        Ok(())
    }

    fn broadcast(&self, _: &mut [f32]) -> Result<()> {
        Ok(())
    }
}

/// Lists the shards that a process computes.
pub(super) fn own_shards(ranks: &dyn Ranks, shards: usize) -> Vec<usize> {
    (ranks.rank()..shards).step_by(ranks.count()).collect()
}

/// Refuses more processes than shards: some would have nothing to do.
pub(super) fn check(ranks: &dyn Ranks, shards: usize) -> Result<()> {
    if ranks.count() <= shards {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "number of processes",
        problem: format!(
            "{} processes share {shards} shards: expected at most one process for each shard",
            ranks.count()
        ),
    })
}

/// Adds up the numbers of all shards in their order. `own` has those of this process's shards, in order; the sums come back to all.
pub(super) fn add_in_order(
    ranks: &dyn Ranks,
    shards: usize,
    own: Vec<Vec<f32>>,
) -> Result<Vec<f32>> {
    let length = own[0].len();
    if ranks.rank() > 0 {
        for values in &own {
            ranks.send(values)?;
        }
        let mut sums = vec![0.0; length];
        ranks.broadcast(&mut sums)?;
        return Ok(sums);
    }
    let mut own = own.into_iter();
    let mut sums = own.next().expect("the first shard is the first process's");
    let mut received = vec![0.0; length];
    for shard in 1..shards {
        let from = shard % ranks.count();
        let mine = (from == 0).then(|| own.next()).flatten();
        if mine.is_none() {
            ranks.receive(from, &mut received)?;
        }
        let added = mine.as_ref().unwrap_or(&received);
        for (sum, value) in sums.iter_mut().zip(added) {
            *sum += value;
        }
    }
    ranks.broadcast(&mut sums)?;
    Ok(sums)
}

/// Tells all processes what the first one decided.
pub(super) fn agree(ranks: &dyn Ranks, decided: bool) -> Result<bool> {
    let mut told = [f32::from(u8::from(decided))];
    ranks.broadcast(&mut told)?;
    Ok(told[0] != 0.0)
}

/// Reads all gradients as numbers, in the order of the module's parameters.
pub(super) fn flattened<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<f32> {
    let mut flat = Flatten {
        gradients,
        values: Vec::new(),
    };
    module.visit(&mut flat);
    flat.values
}

/// Puts numbers back in place of the gradients that they were read from, each times a factor.
pub(super) fn unflattened<M: Module>(
    module: &M,
    mut gradients: GradientsParams,
    values: &[f32],
    factor: f32,
) -> GradientsParams {
    module.visit(&mut Unflatten {
        gradients: &mut gradients,
        values,
        factor,
    });
    gradients
}

/// Makes all processes keep the running statistics of the first one.
pub(super) fn share_buffers<M: Module>(ranks: &dyn Ranks, module: M) -> Result<M> {
    if ranks.count() == 1 {
        return Ok(module);
    }
    let mut found = Buffers(Vec::new());
    module.visit(&mut found);
    let mut values = found.0;
    ranks.broadcast(&mut values)?;
    Ok(module.map(&mut SetBuffers(&values)))
}

struct Flatten<'a> {
    gradients: &'a GradientsParams,
    values: Vec<f32>,
}

impl ModuleVisitor for Flatten<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.get::<D>(parameter.id) {
            self.values.extend(numbers(gradient));
        }
    }
}

struct Unflatten<'a> {
    gradients: &'a mut GradientsParams,
    values: &'a [f32],
    factor: f32,
}

impl ModuleVisitor for Unflatten<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        if let Some(old) = self.gradients.remove::<D>(parameter.id) {
            let (own, rest) = self.values.split_at(old.shape().num_elements());
            self.values = rest;
            let own: Vec<f32> = own.iter().map(|value| value * self.factor).collect();
            let new = Tensor::from_data(TensorData::new(own, old.shape()), &old.device());
            self.gradients.register::<D>(parameter.id, new);
        }
    }
}

/// Reads what is not learned by gradients.
struct Buffers(Vec<f32>);

impl ModuleVisitor for Buffers {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let value = parameter.val();
        if !value.is_require_grad() {
            self.0.extend(numbers(value));
        }
    }
}

/// Replaces what is not learned by gradients.
struct SetBuffers<'a>(&'a [f32]);

impl ModuleMapper for SetBuffers<'_> {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = parameter.val();
        if value.is_require_grad() {
            return parameter;
        }
        let (own, rest) = self.0.split_at(value.shape().num_elements());
        self.0 = rest;
        let data = TensorData::new(own.to_vec(), value.shape());
        let new = Tensor::from_data(data, &value.device());
        Param::initialized(parameter.id, new)
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.into_data();
    data.try_to_vec().expect("parameters are f32")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Processes that are threads.
    struct Threads {
        rank: usize,
        count: usize,
        to_first: Sender<Vec<f32>>,
        from_others: Vec<Receiver<Vec<f32>>>,
        to_others: Vec<Sender<Vec<f32>>>,
        from_first: Receiver<Vec<f32>>,
    }

    impl Ranks for Threads {
        fn rank(&self) -> usize {
            self.rank
        }

        fn count(&self) -> usize {
            self.count
        }

        fn send(&self, values: &[f32]) -> Result<()> {
            self.to_first.send(values.to_vec()).unwrap();
            Ok(())
        }

        fn receive(&self, from: usize, into: &mut [f32]) -> Result<()> {
            into.copy_from_slice(&self.from_others[from].recv().unwrap());
            Ok(())
        }

        fn broadcast(&self, values: &mut [f32]) -> Result<()> {
            if self.rank == 0 {
                for other in &self.to_others[1..] {
                    other.send(values.to_vec()).unwrap();
                }
            } else {
                values.copy_from_slice(&self.from_first.recv().unwrap());
            }
            Ok(())
        }
    }

    fn threads(count: usize) -> Vec<Threads> {
        let (to_first, from_others): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
        let (to_others, from_first): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
        let mut from_others = Some(from_others);
        let each = to_first.into_iter().zip(from_first).enumerate();
        each.map(|(rank, (to_first, from_first))| Threads {
            rank,
            count,
            to_first,
            from_others: from_others.take().unwrap_or_default(),
            to_others: to_others.clone(),
            from_first,
        })
        .collect()
    }

    #[test]
    fn sums_do_not_depend_on_the_number_of_processes() {
        const SHARDS: usize = 8;
        // In another order these add up to other bits.
        fn numbers(shard: usize) -> Vec<f32> {
            let value = 1.0e4_f32.powi(shard as i32 % 3 - 1) / (shard + 3) as f32;
            vec![value, -3.0 * value]
        }
        let sums = |count: usize| {
            let all: Vec<_> = threads(count)
                .into_iter()
                .map(|ranks| {
                    std::thread::spawn(move || {
                        let own = own_shards(&ranks, SHARDS);
                        let own = own.into_iter().map(numbers).collect();
                        add_in_order(&ranks, SHARDS, own).unwrap()
                    })
                })
                .collect();
            let all: Vec<_> = all.into_iter().map(|one| one.join().unwrap()).collect();
            assert!(all.iter().all(|one| *one == all[0]));
            all[0].clone()
        };
        let one = add_in_order(&Alone, SHARDS, (0..SHARDS).map(numbers).collect()).unwrap();
        for count in 1..=4 {
            assert_eq!(sums(count), one, "{count} processes");
        }
    }

    #[test]
    fn more_processes_than_shards_are_refused() {
        let ranks = threads(3);
        assert!(check(&ranks[0], 3).is_ok());
        let error = check(&ranks[0], 2).unwrap_err().to_string();
        assert!(error.contains("3 processes share 2 shards"), "{error}");
    }
}
