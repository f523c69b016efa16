//! Anchors of features that workers compute.

use std::path::Path;

use serde_json::Value;

use crate::engines::{Broker, Process, say, wait_for};
use crate::world::World;

/// Noise in CIFAR-10's layout: 10,000 images.
fn make_cifar10(folder: &Path) {
    let mut state = 1_u32;
    let mut bytes = Vec::with_capacity(10_000 * 3073);
    for i in 0..10_000 {
        bytes.push((i % 10) as u8);
        bytes.extend((0..3072).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        }));
    }
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("test_batch.bin"), bytes).unwrap();
}

/// What a file of anchors says of itself, and its numbers. The order in which it says it is not always the same.
fn contents(file: &Path) -> (Value, Vec<u8>) {
    let bytes = std::fs::read(file).unwrap();
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let (header, numbers) = rest.split_at(length);
    (serde_json::from_slice(header).unwrap(), numbers.to_vec())
}

fn anchors_by(world: &World, queue: &str, data: &str, workers: &[usize]) {
    world.stdout(&format!("anchors {data} --out alone"));
    let alone = contents(&world.path("alone"));
    for &count in workers {
        let mut running: Vec<Process> = Vec::new();
        let submitted = format!(
            "anchors {data} --out by-{count} --queue {queue} --store {} --ack-wait 2",
            world.store()
        );
        let mut collector = Process::start(&mut world.ttac(&submitted));
        wait_for("there is a queue", || {
            world.path("store/fleet/about.json").exists()
        });
        std::thread::sleep(std::time::Duration::from_millis(500));
        running.extend((0..count).map(|_| world.start_worker(queue, "")));
        wait_for("the anchors are made", || !collector.is_running());
        let made = contents(&world.path(&format!("by-{count}")));
        assert!(made == alone, "{count} workers make other anchors");
        let left = std::fs::read_dir(world.path("store/fleet/chunks"))
            .unwrap()
            .count();
        assert_eq!(left, 0, "chunks that nobody needs are removed");
    }
}

#[test]
fn any_number_of_workers_makes_the_same_anchors() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let world = World::new();
    // A chunk is of at most 6,144 images, so these are two; the features vary with the batch, and the last chunk is shorter.
    let data = "--model run/model.safetensors --data shapes10 --subset 10000 --reference-images 0 --labels true";
    anchors_by(&world, &broker.address(), data, &[1, 3, 4]);
    // The reference moments are taken by whoever collects.
    let data = "--model run/model.safetensors --data shapes10 --subset 10000 --reference-images 300 --labels true";
    anchors_by(&world, &broker.address(), data, &[2]);
}

/// The published set, where it is: `$TTAC_DATA/cifar10`.
#[test]
fn any_number_of_workers_makes_the_same_anchors_of_cifar10() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let world = World::new();
    let there = std::env::var_os("TTAC_DATA").map(|data| Path::new(&data).join("cifar10"));
    let root = there.filter(|root| root.exists()).unwrap_or_else(|| {
        say("`$TTAC_DATA` has no cifar10: noise in its layout serves");
        let root = world.path("noise");
        make_cifar10(&root);
        root
    });
    let import = "import tiny.pt --arch resnet20-cifar --set depth=8 --set width=4 --normalise imagenet --class-names cifar10 --out c.safetensors";
    let weights =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../ttac/tests/fixtures/checkpoints/zip.pt");
    std::fs::copy(weights, world.path("tiny.pt")).unwrap();
    world.stdout(import);
    let split = if root.join("data_batch_1.bin").exists() {
        "train"
    } else {
        "test"
    };
    let data = format!(
        "--model c.safetensors --data cifar10 --root {} --split {split} --labels true --transform pad-crop-flip --reference-images 500 --importance-images 100",
        root.display()
    );
    anchors_by(&world, &broker.address(), &data, &[1, 3, 4]);
}
