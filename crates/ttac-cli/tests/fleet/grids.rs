//! Grids by workers: killed, stopped, resumed, and the same as on one machine.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::engines::{Broker, Bucket, Process, wait_for};
use crate::world::World;

/// Twenty settings of two methods with five seeds each.
const TWO_HUNDRED: &str = r#"
    [grid]
    model = "run/model.safetensors"
    data = "shapes10"
    subset = 40
    batch-size = 20
    minibatch = 20
    no-queue = true
    corruption = ["snow", "fog", "contrast", "brightness", "pixelate"]
    severity = [2, 3, 4, 5]
    seed = [0, 1, 2, 3, 4]
    [[row]]
    method = "bn"
    [[row]]
    method = "tent"
"#;

const SIX: &str = r#"
    [grid]
    model = "run/model.safetensors"
    data = "shapes10"
    subset = 40
    batch-size = 20
    minibatch = 20
    no-queue = true
    features = 10
    seed = [0, 1, 2]
    [[row]]
    method = "bn"
    [[row]]
    method = "tent"
"#;

/// One cell of many batches.
const LONG: &str = r#"
    [grid]
    model = "run/model.safetensors"
    data = "shapes10"
    subset = 1000
    batch-size = 10
    minibatch = 10
    queue = 200
    [[row]]
    method = "ttac-source-free"
"#;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % most
    }
}

#[test]
fn two_hundred_cells_outlive_workers_and_a_broker_that_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let Some(bucket) = Bucket::start(&[]) else {
        return;
    };
    let world = World::with_bucket(bucket.port);
    world.write("grid.toml", TWO_HUNDRED);
    let queue = broker.address();
    let submitted = world.submit(&queue);
    assert_eq!(submitted["submitted"], 200);
    // A second submission finds all of them waiting.
    assert_eq!(world.submit(&queue)["submitted_before"], 200);
    let mut workers: Vec<Process> = (0..4)
        .map(|_| world.start_worker(&queue, "--until-empty"))
        .collect();
    let mut dice = Dice(23);
    let mut killed = (0, 0);
    let start = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(500 + dice.below(1500)));
        if dice.below(4) == 0 {
            broker.kill();
            std::thread::sleep(Duration::from_millis(dice.below(1500)));
            broker.start_again();
            killed.1 += 1;
        } else {
            let worker = &mut workers[dice.below(4) as usize];
            killed.0 += usize::from(worker.is_running());
            worker.kill();
            *worker = world.start_worker(&queue, "--until-empty");
        }
        let status = world.status(&queue);
        assert_eq!(status["failed"], serde_json::json!([]));
        if status["done"] == 200 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(400), "{status}");
    }
    assert!(killed.0 > 1 && killed.1 > 0, "{killed:?} were killed");
    for worker in &mut workers {
        wait_for("the workers end when nothing is left", || {
            !worker.is_running()
        });
    }
    let status = world.status(&queue);
    assert_eq!(
        (&status["waiting"], &status["taken"]),
        (&0.into(), &0.into())
    );
    // Names are those of the cells, so there is each result once.
    assert_eq!(status["done"], 200);
    world.check_table();
}

#[test]
fn the_leader_of_three_brokers_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut brokers) = Broker::cluster(folder.path()) else {
        return;
    };
    let world = World::new();
    world.write(
        "grid.toml",
        &SIX.replace("[0, 1, 2]", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
    );
    let addresses: Vec<String> = brokers.iter().map(Broker::address).collect();
    let queue = addresses.join(",");
    // A cluster that has just started elects first.
    let submit = format!("{} --ack-wait 2 --replicas 3 --json", world.bench(&queue));
    wait_for("the cluster takes work", || {
        world.ttac(&submit).output().unwrap().status.success()
    });
    let mut workers: Vec<Process> = (0..2)
        .map(|_| world.start_worker(&queue, "--until-empty"))
        .collect();
    wait_for("some cells are done", || {
        world.status(&queue)["done"].as_u64() > Some(3)
    });
    // Whoever is the leader of the queue is among them; one after the other, so that two are always there.
    for broker in &mut brokers {
        broker.kill();
        std::thread::sleep(Duration::from_secs(3));
        broker.start_again();
        std::thread::sleep(Duration::from_secs(3));
    }
    for worker in &mut workers {
        wait_for("the workers end when nothing is left", || {
            !worker.is_running()
        });
    }
    let status = world.status(&queue);
    assert_eq!(status["done"], 20, "{status}");
    world.check_table();
}

#[test]
fn a_folder_is_a_store_and_features_come_along() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let world = World::new();
    world.write("grid.toml", SIX);
    let queue = broker.address();
    world.submit(&queue);
    let said = world.work(&queue);
    assert!(said.contains("bn 0: error "), "{said}");
    let files = std::fs::read_dir(world.path("store")).unwrap();
    let names: Vec<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let is_cell = |name: &str| Path::new(name).extension() == Some("json".as_ref());
    let of_kind = |kind: &str| names.iter().filter(|name| name.ends_with(kind)).count();
    assert_eq!(
        (of_kind(".json"), of_kind(".features.safetensors")),
        (6, 6),
        "{names:?}"
    );
    world.check_table();
    // What is there is not submitted again, and what was lost is.
    assert_eq!(world.submit(&queue)["submitted"], 0);
    let lost = names.iter().find(|name| is_cell(name)).unwrap();
    std::fs::write(world.path("store").join(lost), "half a ").unwrap();
    assert_eq!(world.submit(&queue)["submitted"], 1);
    world.work(&queue);
    world.check_table();
}

#[test]
fn without_a_queue_a_store_takes_what_is_run_here() {
    let world = World::new();
    world.write("grid.toml", SIX);
    let bench = format!("bench grid.toml --store {}", world.store());
    assert_eq!(world.json(&bench)["run_now"], 6);
    assert_eq!(world.json(&bench)["run_now"], 0);
    world.check_table();
}

#[test]
fn a_long_cell_that_is_stopped_or_killed_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let world = World::new();
    world.write("grid.toml", LONG);
    let queue = broker.address();
    world.submit(&queue);
    let checkpoints = world.path("store/fleet/checkpoints");
    let newest = || -> Option<Vec<u8>> {
        let file = std::fs::read_dir(&checkpoints).ok()?.next()?.ok()?.path();
        std::fs::read(file).ok()
    };
    let mut killed = world.start_worker(&queue, "--checkpoint-every 1");
    wait_for("there is a checkpoint", || newest().is_some());
    killed.kill();
    let first = newest();
    let mut stopped = world.start_worker(&queue, "--checkpoint-every 1000");
    wait_for("the second worker has it", || {
        let status = world.status(&queue);
        let workers = status["workers"].as_array().unwrap().clone();
        let works = |worker: &serde_json::Value| worker["says"].as_str().unwrap().contains('%');
        // The one that was killed is forgotten by and by.
        workers.iter().filter(|worker| works(worker)).count() == 1
            && status["taken"] == 1
            && workers.len() == 1
    });
    stopped.stop();
    wait_for("it stops", || !stopped.is_running());
    assert_ne!(newest(), first, "what it came to is stored");
    // What was given back is there at once.
    let said = world.work(&queue);
    assert!(!said.contains("starts again"), "{said}");
    assert_eq!(newest(), None, "a checkpoint that nobody needs is removed");
    world.check_table();
}
