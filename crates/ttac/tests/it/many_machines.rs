//! What several machines share has the bits of one.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use ttac::Result;
use ttac::backbone::Architecture;
use ttac::burn::tensor::Device;
use ttac::checkpoint::{Augmentation, InputContract, Objective, fingerprint};
use ttac::data::{Shapes10, Split};
use ttac::stats::{AnchorChunks, AnchorConfig, SourceLabels, collect, collect_with};
use ttac::train::{EpochReport, Ranks, StepReport, TrainConfig, Trainer, Watch};

fn architecture() -> Architecture {
    let small = Architecture::by_name("resnet20-cifar", 10).unwrap();
    let small = small.with_field("depth", "8").unwrap();
    small.with_field("width", "4").unwrap()
}

#[test]
fn anchors_of_chunks_that_were_computed_elsewhere_are_the_same() {
    let device = Device::flex();
    let network = architecture().init(1, &device).unwrap();
    let data = Shapes10::new(Split::Train, 7300, 0);
    let input = InputContract::measured(&data, 100).unwrap();
    // A chunk has at least one forward pass, so these are three, the last of which is shorter.
    let config = AnchorConfig {
        transform: Augmentation::PadCropFlip,
        labels: SourceLabels::True,
        batch_size: 3100,
        reference_images: 200,
        importance_images: 50,
        ..AnchorConfig::default()
    };
    let chunks = AnchorChunks::new(&data, &config);
    assert_eq!(chunks.count(), 3);
    let first = chunks.first_elsewhere(&network, &config);
    assert_eq!(first, 1, "the reference moments are taken from the first");
    let alone = collect(&network, "f", &input, &data, &config, &device, |_| {}).unwrap();
    let mut asked = Vec::new();
    let shared = collect_with(
        &network,
        "f",
        &input,
        &data,
        &config,
        &device,
        |_| {},
        |chunk| {
            asked.push(chunk);
            // The last one is nowhere, so that it is computed here.
            if chunk == 2 {
                return Ok(None);
            }
            chunks
                .features(&network, &input, &data, &config, chunk, &device)
                .map(Some)
        },
    );
    assert_eq!(shared.unwrap(), alone);
    assert_eq!(asked, [1, 2]);
    let short = |_| Ok(Some(vec![0.0; 10]));
    let error = collect_with(
        &network,
        "f",
        &input,
        &data,
        &config,
        &device,
        |_| {},
        short,
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("3100 images of 16 features") && error.contains("10 numbers"),
        "{error}"
    );
}

/// Two processes that are threads.
struct Pair {
    rank: usize,
    to: Sender<Vec<f32>>,
    from: Mutex<Receiver<Vec<f32>>>,
}

impl Pair {
    fn new() -> [Self; 2] {
        let ((to_second, from_first), (to_first, from_second)) = (channel(), channel());
        let pair = |rank, to, from| Self {
            rank,
            to,
            from: Mutex::new(from),
        };
        [
            pair(0, to_second, from_second),
            pair(1, to_first, from_first),
        ]
    }

    fn take(&self, into: &mut [f32]) {
        into.copy_from_slice(&self.from.lock().unwrap().recv().unwrap());
    }
}

impl Ranks for Pair {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        2
    }

    fn send(&self, values: &[f32]) -> Result<()> {
        self.to.send(values.to_vec()).unwrap();
        Ok(())
    }

    fn receive(&self, _: usize, into: &mut [f32]) -> Result<()> {
        self.take(into);
        Ok(())
    }

    fn broadcast(&self, values: &mut [f32]) -> Result<()> {
        if self.rank == 0 {
            self.to.send(values.to_vec()).unwrap();
        } else {
            self.take(values);
        }
        Ok(())
    }
}

struct Quiet;

impl Watch for Quiet {
    fn step(&mut self, _: &StepReport) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn epoch(&mut self, _: &EpochReport, _: f64) {}
}

fn trained(objective: Objective, shards: usize, ranks: Option<&Pair>) -> (String, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let data = Shapes10::new(Split::Train, 60, 0);
    let config = TrainConfig {
        batch_size: 24,
        shards,
        held_out: 10,
        ..TrainConfig::new(objective, 3)
    };
    let mut network = architecture();
    if objective == Objective::Simclr {
        network = network.with_field("projection", "8").unwrap();
    }
    let input = InputContract::measured(&data, 100).unwrap();
    let device = Device::flex();
    let mut trainer = Trainer::new(config, network.clone(), None, input, &data, &device).unwrap();
    let ended = match ranks {
        Some(ranks) => trainer.run_among(ranks, &data, &path, 100, &mut Quiet),
        None => trainer.run(&data, &path, 100, &mut Quiet),
    };
    ended.unwrap();
    (
        fingerprint(&network, &trainer.network()),
        trainer.log().to_vec(),
    )
}

#[test]
fn two_processes_train_to_the_bits_of_one() {
    for objective in [Objective::Plain, Objective::Simclr] {
        let alone = trained(objective, 3, None);
        let both = std::thread::scope(|scope| {
            let pair = Pair::new();
            let run = |ranks: Pair| scope.spawn(move || trained(objective, 3, Some(&ranks)));
            pair.map(run).map(|one| one.join().unwrap())
        });
        // The second process evaluates and schedules with the same running statistics.
        assert_eq!(both[0], alone);
        assert_eq!(both[1], alone);
        assert_ne!(trained(objective, 2, None).0, alone.0, "shards do matter");
    }
}
