//! Images per second of every corruption, at 32 x 32 and 224 x 224.
//!
//! ```text
//! cargo bench -p ttac-corrupt [-- --severity 5 --only snow,fog --threads 1 --side 32]
//! ```
//!
//! `TTAC_FROST` may name the frost photographs. The recipe itself is timed by `reference/corruptions/time_recipe.py`.
#![expect(clippy::print_stdout, reason = "the table is the result")]

use std::time::{Duration, Instant};

use ttac_corrupt::{Corruption, Corruptor, FrostTextures, Severity};

/// The value after `--name` among the arguments.
fn option(name: &str) -> Option<String> {
    std::env::args()
        .skip_while(|argument| argument != name)
        .nth(1)
}

/// Smooth pictures: a few colour waves each.
fn pictures(side: usize, count: usize) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(count * side * side * 3);
    for image in 0..count {
        for y in 0..side {
            for x in 0..side {
                for channel in 0..3 {
                    let phase = (image * 7 + channel * 3) as f64;
                    let (x, y) = (x as f64 / side as f64, y as f64 / side as f64);
                    let wave = (9.0 * x + phase).sin()
                        + (7.0 * y - phase).cos()
                        + (23.0 * (x + y)).sin() * 0.3;
                    pixels.push((127.0 + 55.0 * wave) as u8);
                }
            }
        }
    }
    pixels
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let severity: Severity =
        option("--severity").map_or(Ok(Severity::STRONGEST), |text| text.parse())?;
    let only = match option("--only") {
        Some(names) => names
            .split(',')
            .map(str::parse)
            .collect::<Result<Vec<Corruption>, _>>()?,
        None => Corruption::ALL.to_vec(),
    };
    let sides = match option("--side") {
        Some(side) => vec![side.parse()?],
        None => vec![32, 224],
    };
    if let Some(threads) = option("--threads") {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads.parse()?)
            .build_global()?;
    }
    let corruptor = Corruptor::new(1).with_frost(FrostTextures::find(None)?);
    println!(
        "severity {severity}, {} threads",
        rayon::current_num_threads()
    );
    for side in sides {
        println!("\n{side} x {side:<14} us/image   images/s");
        let count = if side < 100 { 1000 } else { 24 };
        let images = pictures(side, count);
        for &corruption in &only {
            let mut buffer = images.clone();
            let mut best = Duration::MAX;
            let began = Instant::now();
            // The best of several runs: other work on the machine only ever adds time.
            while began.elapsed() < Duration::from_millis(400) {
                buffer.copy_from_slice(&images);
                let start = Instant::now();
                corruptor.apply_in_place(corruption, severity, &mut buffer, side, side, 0)?;
                best = best.min(start.elapsed());
            }
            let each = best.as_secs_f64() / count as f64;
            println!(
                "{:18} {:>9.1} {:>10.0}",
                corruptor.name_of(corruption),
                each * 1e6,
                1.0 / each
            );
        }
    }
    Ok(())
}
