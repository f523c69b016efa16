//! What goes wrong between machines, and what is said about it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::engines::{Broker, Bucket, Way, free_port, program, wait_for};
use crate::world::World;

const TWO: &str = r#"
    [grid]
    model = "run/model.safetensors"
    data = "shapes10"
    subset = 40
    batch-size = 20
    seed = [0, 1]
    [[row]]
    method = "bn"
"#;

fn is_hidden(file: &Path) -> bool {
    let name = file.file_name().unwrap().to_string_lossy();
    name.starts_with('.')
}

fn world() -> World {
    let world = World::new();
    world.write("grid.toml", TWO);
    world
}

#[test]
fn addresses_that_are_none_are_refused() {
    let world = world();
    let bench = "bench grid.toml --store";
    world.fails_with(
        &format!("{bench} gs://bucket"),
        &["`gs://bucket` is no store", "`s3://BUCKET/PREFIX`"],
    );
    world.fails_with(
        &format!("{bench} file://here"),
        &["`file://here` is no store", "`file:///FOLDER`"],
    );
    let with_queue = format!("{bench} {} --queue", world.store());
    world.fails_with(
        &format!("{with_queue} http://me:secret@host"),
        &["`http://host` is no queue", "`nats://"],
    );
    world.fails_with(
        &format!(
            "work --queue nats://127.0.0.1:9 --store file://{}",
            world.path("empty").display()
        ),
        &[
            "nothing was submitted to the store",
            "`ttac bench GRID --queue .. --store ..`",
        ],
    );
}

#[test]
fn a_broker_or_a_store_that_is_away_at_the_start_is_named() {
    let world = world();
    let queue = format!("nats://127.0.0.1:{}", free_port());
    world.fails_with(
        &world.bench(&queue),
        &[&queue, "does not answer", "hint: start the broker"],
    );
    let port = free_port();
    let away = World::with_bucket(port);
    away.write("grid.toml", TWO);
    away.fails_with(
        &away.bench(&queue),
        &[
            "s3://results/table",
            "does not answer",
            "hint: `AWS_ENDPOINT`",
        ],
    );
}

#[test]
fn a_store_that_goes_away_in_the_middle_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let Some(bucket) = Bucket::start(&[]) else {
        return;
    };
    let way = Way::to(bucket.port);
    let world = World::with_bucket(way.port);
    world.write(
        "grid.toml",
        &TWO.replace("[0, 1]", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
    );
    let queue = broker.address();
    world.submit(&queue);
    let mut worker = world.start_worker(&queue, "--until-empty");
    wait_for("the first result", || {
        world.status(&queue)["done"].as_u64() > Some(0)
    });
    way.cut();
    std::thread::sleep(Duration::from_secs(12));
    assert!(worker.is_running(), "it waits");
    way.mend();
    wait_for("the worker ends", || !worker.is_running());
    let status = world.status(&queue);
    assert_eq!(
        (&status["done"], &status["failed"]),
        (&10.into(), &serde_json::json!([]))
    );
}

#[test]
fn a_broker_that_goes_away_in_the_middle_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let world = world();
    let queue = broker.address();
    world.submit(&queue);
    broker.kill();
    let mut command = world.worker(&queue, "--until-empty");
    let refused = command.stderr(Stdio::piped()).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("does not answer"));
    broker.start_again();
    world.write(
        "grid.toml",
        &TWO.replace("[0, 1]", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
    );
    world.submit(&queue);
    let mut worker = world.start_worker(&queue, "--until-empty");
    wait_for("the first result", || {
        world.status(&queue)["done"].as_u64() > Some(0)
    });
    broker.kill();
    std::thread::sleep(Duration::from_secs(8));
    assert!(worker.is_running(), "it waits");
    broker.start_again();
    wait_for("the worker ends", || !worker.is_running());
    assert_eq!(world.status(&queue)["done"], 10);
}

#[test]
fn wrong_credentials_are_refused_and_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let guarded = ["--user", "me", "--pass", "right"];
    let Some(broker) = Broker::start(folder.path(), &guarded) else {
        return;
    };
    let world = world();
    let address = |password: &str| format!("nats://me:{password}@127.0.0.1:{}", broker.port);
    let output = world
        .ttac(&world.bench(&address("wrong-one")))
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("refuses these credentials") && error.contains("hint: credentials"),
        "{error}"
    );
    assert!(!error.contains("wrong-one"), "{error}");
    assert_eq!(world.submit(&address("right"))["submitted"], 2);

    // The first request, which makes the bucket, is free; the others need a user that the store knows.
    let Some(bucket) = Bucket::start(&[("INITIAL_NO_AUTH_ACTION_COUNT", "1")]) else {
        return;
    };
    let away = World::with_bucket(bucket.port);
    away.write("grid.toml", TWO);
    away.fails_with(
        &away.bench(&address("right")),
        &[
            "`s3://results/table` refuses these credentials",
            "hint: `AWS_ACCESS_KEY_ID`",
        ],
    );
}

#[test]
fn a_bucket_that_is_not_there_is_named() {
    let Some(bucket) = Bucket::start(&[]) else {
        return;
    };
    let world = World::with_bucket(bucket.port);
    world.write("grid.toml", TWO);
    world.fails_with(
        "bench grid.toml --store s3://nothing/table",
        &["`s3://nothing/table` is not there: the bucket `nothing` does not exist"],
    );
}

#[test]
fn a_worker_of_another_version_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let world = world();
    let queue = broker.address();
    world.submit(&queue);
    // The store is that of another version.
    let about = world.path("store/fleet/about.json");
    let ours = std::fs::read_to_string(&about).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    std::fs::write(
        &about,
        ours.replace(&format!("ttac {version}"), "ttac 0.0.1"),
    )
    .unwrap();
    let words = ["belongs to ttac 0.0.1", &format!("this is ttac {version}")];
    world.fails_with(
        &format!("work --queue {queue} --store {}", world.store()),
        &words,
    );
    world.fails_with(&world.bench(&queue), &words);
}

#[test]
fn results_of_another_grid_are_not_mixed_in() {
    let world = world();
    world.stdout(&format!("bench grid.toml --store {}", world.store()));
    world.write("grid.toml", &TWO.replace("[0, 1]", "[2]"));
    let bench = format!("bench grid.toml --store {}", world.store());
    world.fails_with(
        &bench,
        &[
            "holds 2 results that are none of this grid's, such as `bn-0.",
            "`--extend`",
        ],
    );
    assert_eq!(world.json(&format!("{bench} --extend"))["run_now"], 1);
}

#[test]
fn a_cell_that_always_fails_is_listed_after_three_tries() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let world = world();
    // The submitter has the data, the workers have not.
    let pictures = world.path("pictures");
    for class in ttac::data::SHAPES10_CLASSES {
        let folder = pictures.join(class);
        std::fs::create_dir_all(&folder).unwrap();
        image::RgbImage::new(32, 32)
            .save(folder.join("a.png"))
            .unwrap();
    }
    let row = format!(
        "[[row]]\nname = \"poison\"\nmethod = \"bn\"\ndata = \"image-folder\"\nroot = {:?}\nseed = 0\nsubset = 10\nbatch-size = 10\n",
        pictures.display()
    );
    world.write("grid.toml", &format!("{TWO}{row}"));
    let queue = broker.address();
    assert_eq!(world.submit(&queue)["submitted"], 3);
    std::fs::rename(&pictures, world.path("hidden")).unwrap();
    let said = world.work(&queue);
    assert_eq!(said.matches("poison failed: ").count(), 3, "{said}");
    let status = world.status(&queue);
    assert_eq!(status["done"], 2);
    assert_eq!(status["failed"][0]["title"], "poison");
    assert_eq!(status["failed"][0]["tries"], 3);
    let problem = status["failed"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("pictures"), "{problem}");
    // Once the reason is gone, the same submission tries again.
    std::fs::rename(world.path("hidden"), &pictures).unwrap();
    assert_eq!(world.submit(&queue)["submitted"], 1);
    world.work(&queue);
    assert_eq!(world.status(&queue)["done"], 3);
}

#[test]
fn a_cell_that_kills_its_workers_is_listed_after_three_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let world = world();
    let long = TWO
        .replace("subset = 40", "subset = 2000\n    queue = 400")
        .replace("[0, 1]", "0");
    world.write("grid.toml", &long.replace("\"bn\"", "\"ttac-source-free\""));
    let queue = broker.address();
    world.submit(&queue);
    for _ in 0..3 {
        let mut worker = world.start_worker(&queue, "");
        let tries = || {
            let notes = world.path("store/fleet/tries");
            let cells = std::fs::read_dir(notes).into_iter().flatten();
            let files = cells.flat_map(|cell| std::fs::read_dir(cell.unwrap().path()).unwrap());
            // A note that is being written has another name.
            let whole = files.filter(|file| !is_hidden(&file.as_ref().unwrap().path()));
            whole.count()
        };
        let before = tries();
        wait_for("the worker has begun", || tries() > before);
        worker.kill();
    }
    let said = world.work(&queue);
    assert!(
        said.contains("is given up after 3 tries: every worker that tried it died"),
        "{said}"
    );
    assert_eq!(world.status(&queue)["failed"][0]["tries"], 3);
}

#[test]
fn clocks_may_differ_by_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let Some(faketime) = program("TTAC_FAKETIME") else {
        return;
    };
    let Some(broker) = Broker::start(folder.path(), &[]) else {
        return;
    };
    let Some(bucket) = Bucket::start(&[]) else {
        return;
    };
    let world = World::with_bucket(bucket.port);
    world.write("grid.toml", TWO);
    let queue = broker.address();
    world.submit(&queue);
    for shift in ["+7m", "-7m"] {
        let worker = world.worker(&queue, "--until-empty");
        let mut shifted = std::process::Command::new(&faketime);
        shifted
            .arg("-f")
            .arg(shift)
            .arg(worker.get_program())
            .args(worker.get_args());
        shifted.current_dir(worker.get_current_dir().unwrap());
        shifted.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        shifted.envs(
            worker
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let output = shifted.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert_eq!(world.status(&queue)["done"], 2);
    world.check_table();
}
