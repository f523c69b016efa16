//! Orders of arrival: how samples of some classes follow each other, and batches of some visits.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::Gamma;

use super::{Arrival, Within};
use crate::rng::{below, shuffle};

/// Batches of several visits in pieces: a visit that is not used up brings from one to all of its batches that are left, then another
/// one does, until all are used up.
pub(super) fn in_pieces(
    visits: &[Vec<Vec<Arrival>>],
    generator: &mut ChaCha8Rng,
) -> Vec<Vec<Vec<Arrival>>> {
    let mut left: Vec<&[Vec<Arrival>]> = visits.iter().map(Vec::as_slice).collect();
    left.retain(|batches| !batches.is_empty());
    let mut pieces = Vec::new();
    while !left.is_empty() {
        let which = below(left.len(), generator);
        let count = 1 + below(left[which].len(), generator);
        let (piece, rest) = left[which].split_at(count);
        pieces.push(piece.to_vec());
        if rest.is_empty() {
            left.remove(which);
        } else {
            left[which] = rest;
        }
    }
    pieces
}

/// The samples of every class spread over the slots, slot after slot.
pub(super) fn correlated(
    classes: &[Vec<Arrival>],
    concentration: f64,
    slots: usize,
    within: Within,
    generator: &mut ChaCha8Rng,
) -> Vec<Arrival> {
    // [slots][classes], each a run of one class
    let mut runs: Vec<Vec<&[Arrival]>> = vec![Vec::new(); slots];
    for arrivals in classes {
        let shares = dirichlet(concentration, slots, generator);
        let (mut sum, mut start) = (0.0, 0);
        for (slot, share) in shares.iter().enumerate() {
            sum += share;
            let last = slot + 1 == slots;
            let rounded = (sum * arrivals.len() as f64).round() as usize;
            let end = if last {
                arrivals.len()
            } else {
                rounded.clamp(start, arrivals.len())
            };
            runs[slot].push(&arrivals[start..end]);
            start = end;
        }
    }
    let mut stream = Vec::new();
    for mut slot in runs {
        shuffle(&mut slot, generator);
        let mut arrivals = slot.concat();
        if within == Within::Shuffled {
            shuffle(&mut arrivals, generator);
        }
        stream.extend(arrivals);
    }
    stream
}

/// Sorts items into their classes, in their order.
pub(super) fn by_class<T>(
    items: Vec<T>,
    class: impl Fn(&T) -> usize,
    num_classes: usize,
) -> Vec<Vec<T>> {
    let mut classes: Vec<Vec<T>> = (0..num_classes).map(|_| Vec::new()).collect();
    for item in items {
        classes[class(&item)].push(item);
    }
    classes
}

/// How often the chunks are drawn until each of them has enough samples.
const DRAWS_OF_CHUNKS: usize = 1000;

/// The samples of every class spread over as many chunks as there are classes, chunk after chunk. A chunk that has its share of all samples
/// takes none of the classes that follow. Chunks are drawn again until the smallest has ten samples; where the data are too few or luck
/// is bad, the draw whose smallest chunk is largest counts.
pub(super) fn chunked(
    classes: &[Vec<Arrival>],
    concentration: f64,
    generator: &mut ChaCha8Rng,
) -> Vec<Arrival> {
    const ENOUGH: usize = 10;
    let count = classes.len();
    let share = classes.iter().map(Vec::len).sum::<usize>() as f64 / count.max(1) as f64;
    let mut best: (usize, Vec<Vec<&[Arrival]>>) = (0, Vec::new());
    for _ in 0..DRAWS_OF_CHUNKS {
        // [chunks][classes], each a run of one class
        let mut chunks: Vec<Vec<&[Arrival]>> = vec![Vec::new(); count];
        let size = |chunk: &[&[Arrival]]| chunk.iter().map(|run| run.len()).sum::<usize>();
        for arrivals in classes {
            let mut shares = dirichlet(concentration, count, generator);
            for (share_of_chunk, chunk) in shares.iter_mut().zip(&chunks) {
                if size(chunk) as f64 >= share {
                    *share_of_chunk = 0.0;
                }
            }
            let total: f64 = shares.iter().sum();
            // All that is left may have underflowed; the class is then spread evenly.
            let even = 1.0 / count as f64;
            let (mut sum, mut start) = (0.0, 0);
            for (place, part) in shares.iter().enumerate() {
                sum += if total > 0.0 { part / total } else { even };
                let end = if place + 1 == count {
                    arrivals.len()
                } else {
                    ((sum * arrivals.len() as f64) as usize).clamp(start, arrivals.len())
                };
                chunks[place].push(&arrivals[start..end]);
                start = end;
            }
        }
        let smallest = chunks.iter().map(|chunk| size(chunk)).min().unwrap_or(0);
        if best.1.is_empty() || smallest > best.0 {
            best = (smallest, chunks);
        }
        if best.0 >= ENOUGH {
            break;
        }
    }
    let mut stream = Vec::new();
    for mut chunk in best.1 {
        shuffle(&mut chunk, generator);
        stream.extend(chunk.concat());
    }
    stream
}

/// One stretch for every class, in a random order: in its own stretch a class is `ratio` times as likely as any other one. Samples are
/// drawn from their class with replacement.
pub(super) fn prevailing(
    classes: &[Vec<Arrival>],
    ratio: f64,
    draws: usize,
    generator: &mut ChaCha8Rng,
) -> Vec<Arrival> {
    let mut present: Vec<usize> = (0..classes.len()).collect();
    present.retain(|&class| !classes[class].is_empty());
    let mut order = present.clone();
    shuffle(&mut order, generator);
    let mut stream = Vec::with_capacity(order.len() * draws);
    for own in order {
        let total = ratio + (present.len() - 1) as f64;
        for _ in 0..draws {
            let others = (generator.random::<f64>() * total - ratio).max(-1.0);
            let class = if others < 0.0 {
                own
            } else {
                let others_only = present.iter().filter(|&&class| class != own);
                let nth = (others as usize).min(present.len().saturating_sub(2));
                *others_only.clone().nth(nth).unwrap_or(&own)
            };
            let members = &classes[class];
            stream.push(members[below(members.len(), generator)]);
        }
    }
    stream
}

/// A draw from the symmetric Dirichlet distribution: gamma variates divided by their sum. They are
/// kept as logarithms, `ln G(a) = ln G(a + 1) + ln U / a`, since for small `a` most are nearly zero. The gamma variates are
/// those of `rand_distr`: plans that draw them stay the same only as long as its algorithm does.
pub(super) fn dirichlet(concentration: f64, count: usize, generator: &mut ChaCha8Rng) -> Vec<f64> {
    let gamma = Gamma::new(concentration + 1.0, 1.0).expect("the concentration was checked");
    let logarithms: Vec<f64> = (0..count)
        .map(|_| {
            let above_zero = 1.0 - generator.random::<f64>();
            generator.sample(gamma).ln() + above_zero.ln() / concentration
        })
        .collect();
    let largest = logarithms.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = logarithms.iter().map(|log| (log - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}
