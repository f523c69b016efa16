//! Training, anchors and adaptation as a user types them, on embedded images.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{World, ended};

const TRAIN: &str = "train --data shapes10 --subset 400 --arch resnet20-cifar --set depth=8 \
                     --set width=4 --held-out 40 --batch-size 40 --epochs 2";

/// A world with a model and its anchors.
fn adapted() -> World {
    let world = World::new();
    world.stdout(&format!("{TRAIN} --out run"));
    world.stdout(
        "anchors --model run/model.safetensors --data shapes10 --subset 400 --labels true --out a",
    );
    world
}

const ADAPT: &str = "adapt --model run/model.safetensors --anchors a --data shapes10 --subset 200 \
                     --corruption snow --severity 5 --batch-size 40 --minibatch 40 --queue 80";

#[test]
fn a_training_run_that_is_killed_and_resumed_ends_with_the_same_weights() {
    let world = World::new();
    let whole = world.json(&format!("{TRAIN} --out whole --json"));
    let log = std::fs::read_to_string(world.path("whole/log.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 2);
    let state = world.path("part/training.safetensors");
    let mut child = Command::new(env!("CARGO_BIN_EXE_ttac"))
        .args(format!("{TRAIN} --save-every 1 --out part").split_whitespace())
        .current_dir(world.path("."))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // SIGKILL as soon as there is something to continue from.
    while !state.exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        world
            .error(&format!("{TRAIN} --out part"))
            .contains("--resume")
    );
    let resumed = world.json(&format!(
        "{TRAIN} --save-every 1 --out part --resume --json"
    ));
    assert_eq!(resumed["fingerprint"], whole["fingerprint"]);
    assert_eq!(
        resumed["last_epoch"]["held_out_error_percent"],
        whole["last_epoch"]["held_out_error_percent"]
    );
    let other = world.error(&format!("{TRAIN} --seed 3 --out part --resume"));
    assert!(other.contains("configuration of the run"), "{other}");
}

#[test]
fn anchors_belong_to_one_model() {
    let world = adapted();
    let info =
        world.json("anchors --model run/model.safetensors --data shapes10 --estimate --json");
    assert!(info["file_bytes"].as_u64().unwrap() > 1000);
    world.stdout(&format!("{TRAIN} --seed 1 --out other"));
    world.fails_with(
        &ADAPT.replace("run/model", "other/model"),
        &["anchors do not belong to this model"],
    );
    world.fails_with(&ADAPT.replace("--anchors a ", ""), &["`ttac anchors`"]);
    let mut bytes = std::fs::read(world.path("a")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(world.path("a"), bytes).unwrap();
    world.fails_with(ADAPT, &["digest"]);
}

#[test]
fn an_adaptation_that_is_stopped_and_resumed_is_the_same() {
    let world = adapted();
    let whole = world.json(&format!("{ADAPT} --predictions p --json"));
    assert_eq!(whole["samples"], 200);
    assert_eq!(whole["card"]["family"], "N-O");
    assert_eq!(whole["card"]["protocol"]["queue"]["capacity"], 80);
    let lines = std::fs::read_to_string(world.path("p")).unwrap();
    assert_eq!(lines.lines().count(), 201);
    // Saved after every second batch; the last state is that after the fourth of five.
    let saving = format!("{ADAPT} --predictions q --checkpoint state --checkpoint-every 2");
    world.stdout(&saving);
    let resumed = world.json(&format!("{saving} --resume --json"));
    assert_eq!(resumed["predictions"], whole["predictions"]);
    assert_eq!(resumed["error_percent"], whole["error_percent"]);
    assert_eq!(std::fs::read_to_string(world.path("q")).unwrap(), lines);
    let other = format!("{saving} --resume --seed 9");
    assert!(world.error(&other).contains("run saved in `state`"));
}

#[test]
fn adapted_weights_are_a_checkpoint() {
    let world = adapted();
    world.stdout(&format!(
        "{ADAPT} --save-model adapted.safetensors --out record.json --log log"
    ));
    let info = world.stdout("info adapted.safetensors");
    assert!(info.contains("resnet-cifar"), "{info}");
    let record = std::fs::read_to_string(world.path("record.json")).unwrap();
    let record: ttac::protocol::RunRecord = serde_json::from_str(&record).unwrap();
    assert_eq!(record.samples, 200);
    assert_eq!(record.curve.len(), 5);
    let log = std::fs::read_to_string(world.path("log")).unwrap();
    assert_eq!(log.lines().count(), 5);
}

/// Folders are read class by class, so the first files are of the first classes. Their classes take the
/// model's order.
#[test]
fn a_subset_can_be_chosen_at_random() {
    let world = adapted();
    world.stdout(
        "corrupt --data shapes10 --corruption snow --severity 5 --subset 60 --format folder --out c",
    );
    let adapt = "adapt --model run/model.safetensors --data image-folder --root c/snow/5 --subset 12 \
                 --batch-size 6 --minibatch 6 --no-queue --method bn --json";
    let classes = |record: &serde_json::Value| {
        let confusion = record["confusion"].as_array().unwrap().clone();
        let seen = confusion.iter().filter(|row| {
            let row = row.as_array().unwrap();
            row.iter().any(|count| count.as_u64() != Some(0))
        });
        seen.count()
    };
    let first = world.json(adapt);
    let random = world.json(&format!("{adapt} --choose random"));
    assert_eq!(random["samples"], 12);
    assert_eq!(random["classes"][0], "disk");
    assert!(classes(&first) < 4 && classes(&random) > 4);
    world.fails_with(&format!("{adapt} --choose last"), &["last"]);
}

#[test]
fn mistakes_are_named() {
    let world = adapted();
    for (change, expected) in [
        ("--method tnet", "did you mean `tent`?"),
        ("--method ttt-r --protocol y-o", "rotation head"),
        ("--protocol y-o", "is an N protocol"),
        ("--set lerning_rate=1", "did you mean `learning_rate`?"),
        ("--set filter.posterior_threshold=2", "posterior_threshold"),
        ("--batch-size 100", "smaller than a batch of 100"),
    ] {
        let command = if change.starts_with("--batch") {
            ADAPT.replace("--batch-size 40", change)
        } else {
            format!("{ADAPT} {change}")
        };
        world.fails_with(&command, &[expected]);
    }
}

#[test]
fn pictures_without_labels_are_predicted_and_never_scored() {
    let world = adapted();
    world.stdout(
        "corrupt --data shapes10 --corruption snow --severity 5 --subset 60 --format folder --out c",
    );
    let flat = world.path("flat");
    std::fs::create_dir(&flat).unwrap();
    let classes = std::fs::read_dir(world.path("c/snow/5")).unwrap();
    for class in classes.map(|class| class.unwrap()) {
        for file in std::fs::read_dir(class.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), flat.join(file.file_name())).unwrap();
        }
    }
    let command = "adapt --model run/model.safetensors --anchors a --data image-folder --root flat \
                   --batch-size 20 --minibatch 20 --no-queue";
    let result = world.json(&format!("{command} --predictions p.csv --json"));
    assert_eq!(result["samples"], 60);
    assert!(result["error_percent"].is_null() && result["confusion"].is_null());
    let predictions = std::fs::read_to_string(world.path("p.csv")).unwrap();
    assert!(predictions.starts_with("domain,id,predicted,class,confidence,file\n"));
    assert_eq!(predictions.lines().count(), 61);
    assert!(predictions.contains(".png\""), "{predictions}");
    let shapes = ttac::data::SHAPES10_CLASSES;
    for line in predictions.lines().skip(1) {
        let class: usize = line.split(',').nth(2).unwrap().parse().unwrap();
        let named = format!(",{class},\"{}\",", shapes[class]);
        assert!(line.contains(&named), "{line}");
    }
    assert!(world.stdout(command).contains("whose labels are unknown"));
    world.fails_with(&format!("{command} --out r"), &["no labels"]);
    world.fails_with(
        "eval --model run/model.safetensors --data image-folder --root flat",
        &["expected a folder for every class"],
    );
}

const GRID: &str = r#"
[grid]
model = "run/model.safetensors"
data = "shapes10"
subset = 80
batch-size = 40
severity = 5
corruption = ["snow", "contrast"]
seed = [0, 1]
no-queue = true

[[row]]
name = "TEST"
method = "test"

[[row]]
name = "TTAC"
method = "ttac"
anchors = "a"
set = { loss_scale = 0.01, "filter.posterior_threshold" = 0.5 }
"#;

/// Cells by name, without their times.
fn cells(world: &World, folder: &str) -> Vec<(String, serde_json::Value)> {
    let files = std::fs::read_dir(world.path(folder)).unwrap();
    let mut cells: Vec<_> = files
        .map(|file| file.unwrap())
        .filter(|file| file.path().extension().is_some_and(|e| e == "json"))
        .map(|file| {
            let text = std::fs::read_to_string(file.path()).unwrap();
            let mut cell: serde_json::Value = serde_json::from_str(&text).unwrap();
            for time in ["learning_seconds", "predicting_seconds"] {
                cell["record"][time] = 0.into();
            }
            (file.file_name().into_string().unwrap(), cell)
        })
        .collect();
    cells.sort_by(|a, b| a.0.cmp(&b.0));
    cells
}

#[test]
fn a_grid_that_was_cut_short_ends_like_one_that_was_not() {
    let world = adapted();
    std::fs::write(world.path("grid.toml"), GRID).unwrap();
    let plan = world.json("bench grid.toml --out whole --dry-run --json");
    assert_eq!(plan["left"], 8);
    assert!(plan["estimated_seconds"].as_f64().unwrap() > 0.0);
    if cfg!(target_os = "linux") {
        assert!(plan["estimated_megabytes"].as_f64().unwrap() > 1.0);
    }
    assert!(!world.path("whole").exists());
    world.stdout("bench grid.toml --out whole");
    let whole = cells(&world, "whole");
    assert_eq!(whole.len(), 8);
    // Killed at any time: cells are missing, and one was cut in half by another program.
    std::fs::create_dir(world.path("part")).unwrap();
    for (name, _) in &whole[..3] {
        let from = world.path("whole").join(name);
        std::fs::copy(from, world.path("part").join(name)).unwrap();
    }
    std::fs::write(world.path("part").join(&whole[4].0), "{\"row\":").unwrap();
    let result = world.json("bench grid.toml --out part --json");
    assert_eq!(result["run_now"], 5);
    assert_eq!(cells(&world, "part"), whole);
    // Two shards are the whole.
    world.stdout("bench grid.toml --out shards --shard 1/2");
    assert_eq!(cells(&world, "shards").len(), 4);
    world.stdout("bench grid.toml --out shards --shard 2/2");
    assert_eq!(cells(&world, "shards"), whole);
    let table = world.stdout("report whole");
    assert!(table.contains("| TEST ["), "{table}");
    assert!(table.contains(" ± "), "two seeds: {table}");
    assert!(
        table.contains(
            ". ttac (recommended with `filter.posterior_threshold=0.5`, `loss_scale=0.01`), N-O, no queue"
        ),
        "{table}"
    );
    let json = world.json("report shards --json");
    assert_eq!(json["columns"], serde_json::json!(["snow", "contrast"]));
    assert!(
        world
            .stdout("report whole --format csv")
            .starts_with("method,snow,contrast,mean,competitor,difference,p\n")
    );
    // Another configuration does not touch these cells.
    let changed = GRID.replace("loss_scale = 0.01", "loss_scale = 0.02");
    std::fs::write(world.path("grid.toml"), changed).unwrap();
    let result = world.json("bench grid.toml --out part --json");
    assert_eq!(result["run_now"], 4);
    assert_eq!(cells(&world, "part").len(), 12);
    world.fails_with(
        "report part",
        &["row `TTAC`: its cells differ in `constants`"],
    );
}

#[test]
fn a_grid_that_is_killed_ten_times_ends_like_one_that_was_not() {
    let world = adapted();
    std::fs::write(world.path("grid.toml"), GRID).unwrap();
    world.stdout("bench grid.toml --out whole");
    let mut delay = 13;
    for _ in 0..10 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ttac"))
            .args("bench grid.toml --out killed".split_whitespace())
            .current_dir(world.path("."))
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // SIGKILL at a time that nobody chose: before, within or between cells.
        delay = delay * 53 % 367;
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    world.stdout("bench grid.toml --out killed");
    assert_eq!(cells(&world, "killed"), cells(&world, "whole"));
}

#[test]
fn all_mistakes_of_a_grid_are_named_before_it_runs() {
    let world = adapted();
    let wrong = GRID
        .replace("batch-size", "batchsize")
        .replace("method = \"test\"", "methd = \"test\"");
    refuses_grid(
        &world,
        &wrong,
        &["did you mean `batch-size`?", "did you mean `method`?"],
    );
    let wrong = GRID.replace("anchors = \"a\"", "protocol = \"y-o\"");
    refuses_grid(&world, &wrong, &["row `TTAC`"]);
    assert!(!world.path("o").exists());
}

#[test]
fn a_row_without_a_name_is_named_by_its_method_and_a_grid_may_be_a_row() {
    let world = adapted();
    let alone = GRID.split("[[row]]").next().unwrap();
    std::fs::write(world.path("grid.toml"), format!("{alone}method = \"bn\"\n")).unwrap();
    let plan = world.json("bench grid.toml --out o --dry-run --json");
    assert_eq!(plan["cells"][0], "bn snow 0");
    refuses_grid(
        &world,
        &format!("{alone}methd = \"bn\"\n"),
        &[
            "neither a `name` nor a single `method`",
            "did you mean `method`?",
        ],
    );
    refuses_grid(&world, "", &["neither a `[grid]` nor a `[[row]]`"]);
}

/// Asserts that `bench` does not run a grid, and says all of these words.
fn refuses_grid(world: &World, grid: &str, words: &[&str]) {
    std::fs::write(world.path("grid.toml"), grid).unwrap();
    world.fails_with("bench grid.toml --out o", words);
}

#[test]
fn a_report_is_a_page_that_needs_nothing_else() {
    let world = adapted();
    // So few samples of so young a network pass no filter.
    let grid = GRID
        .replace("seed = [0, 1]", "features = 30\ngate = \"off\"")
        .replace(
            "\"filter.posterior_threshold\" = 0.5",
            "\"filter.mode\" = \"none\"",
        );
    std::fs::write(world.path("grid.toml"), grid).unwrap();
    world.stdout("bench grid.toml --out cells");
    let files = std::fs::read_dir(world.path("cells")).unwrap();
    assert_eq!(files.count(), 8, "features beside every cell");
    let json = world.json("report cells --html page.html --title Shapes --json");
    let page = std::fs::read_to_string(world.path("page.html")).unwrap();
    assert!(page.contains("<h1>Shapes</h1>"));
    for figure in [
        "cumulative-error",
        "bars",
        "confusion",
        "anchors",
        "accepted",
        "cost",
        "tsne",
    ] {
        let mark = format!("<figure data-figure=\"{figure}\">");
        assert!(page.contains(&mark), "{figure}");
    }
    assert!(!page.contains("//"), "no address");
    for row in json["rows"].as_array().unwrap() {
        for cell in row["cells"].as_array().unwrap() {
            let error = format!("{:.2}<", cell["mean"].as_f64().unwrap());
            assert!(page.contains(&error), "{error}");
        }
    }
    let by_class = world.json("report cells --by-class --json");
    assert_eq!(by_class["columns"].as_array().unwrap().len(), 10);
    // The same from records of single runs, and nothing without their place.
    let lone = format!("{ADAPT} --features 20");
    assert!(world.error(&lone).contains("give `--out FILE` too"));
    world.stdout(&format!("{lone} --out lone/record.json"));
    world.stdout("report lone --html lone.html");
    let page = std::fs::read_to_string(world.path("lone.html")).unwrap();
    assert!(page.contains("after: ttac"));
    let info = world.stdout("info lone/record.features.safetensors");
    assert!(info.contains("features"), "{info}");
}

/// Writes pictures into a folder without classes.
fn pictures(world: &World, folder: &str, count: usize, pixel: impl Fn(usize) -> u8) {
    std::fs::create_dir(world.path(folder)).unwrap();
    for number in 0..count {
        let picture = image::RgbImage::from_pixel(32, 32, image::Rgb([pixel(number); 3]));
        let path = world.path(folder).join(format!("{number:04}.png"));
        picture.save(path).unwrap();
    }
}

#[test]
fn a_guard_stops_an_unlabelled_stream_of_grey_pictures_with_exit_1() {
    let world = adapted();
    pictures(&world, "grey", 300, |_| 127);
    let command = "adapt --model run/model.safetensors --anchors a --data image-folder --root grey \
                   --no-queue --batch-size 64 --predictions p.csv";
    let output = ended(&mut world.ttac(&format!("{command} --guard stop")), 1);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("1 of 10 classes"), "{error}");
    assert!(error.contains("hint: `--guard warn`"), "{error}");
    let predictions = std::fs::read_to_string(world.path("p.csv")).unwrap();
    assert_eq!(
        predictions.lines().count(),
        65,
        "what was predicted is kept"
    );
    for (action, said) in [
        ("warn", "1 of 10 classes"),
        ("reset", "reset to the source"),
    ] {
        let result = world.json(&format!("{command} --guard {action} --json"));
        assert_eq!(result["samples"], 300);
        assert!(result["warnings"].to_string().contains(said), "{result}");
    }
}

/// Norm statistics of one class scatter the predictions of a network that adapts, so the guard asks the source.
#[test]
fn a_guard_stops_a_stream_of_one_class_with_exit_1() {
    let world = World::new();
    world.stdout(
        "corrupt --data shapes10 --corruption brightness --severity 1 --subset 600 --format folder --out c",
    );
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/shapes10");
    let command = format!(
        "adapt --model {shipped}/model.safetensors --anchors {shipped}/anchors.safetensors --data image-folder \
         --root c/brightness/1/disk --batch-size 60 --minibatch 60 --guard stop"
    );
    let output = ended(&mut world.ttac(&command), 1);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("the source itself sees"), "{error}");
}

#[test]
fn a_record_is_run_again_with_the_same_bits() {
    let world = adapted();
    world.stdout(&format!("{ADAPT} --seed 5 --out records/first.json"));
    world.stdout("bench records/first.json --out again");
    let files = std::fs::read_dir(world.path("again")).unwrap();
    let file = files.map(|file| file.unwrap().path()).next().unwrap();
    let read = |path| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let (first, again) = (read(world.path("records/first.json")), read(file));
    for field in ["predictions", "card", "curve", "error_percent"] {
        assert_eq!(again["record"][field], first[field], "{field}");
    }
}

#[test]
fn a_stream_at_a_speed_answers_late_batches_without_learning() {
    let world = adapted();
    let result = world.json(&format!(
        "{ADAPT} --preset recommended-0.1 --speed 1e9 --log log --json"
    ));
    assert_eq!(
        result["late"], 160,
        "all but the first of five batches of 40"
    );
    let log = std::fs::read_to_string(world.path("log")).unwrap();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 5);
    assert!(lines[0]["updates"].as_u64().unwrap() > 0 && lines[0]["late"] == false);
    assert!(
        lines[1..]
            .iter()
            .all(|line| line["updates"] == 0 && line["late"] == true)
    );
    let slow = world.json(&format!("{ADAPT} --speed 1e-3 --json"));
    assert_eq!(slow["late"], 0);
}

#[test]
fn a_gate_says_who_answered() {
    let world = World::new();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/shapes10");
    let adapt = format!(
        "adapt --model {shipped}/model.safetensors --anchors {shipped}/anchors.safetensors \
         --data shapes10 --subset 100 --batch-size 50 --minibatch 50 --no-queue"
    );
    let fine = world.stdout(&adapt);
    let closed = "the gate stayed closed: the source answered all 100 images";
    assert!(fine.contains(closed), "{fine}");
    let corrupted = format!("{adapt} --corruption contrast --severity 5");
    let opened = world.stdout(&corrupted);
    assert!(opened.contains("the gate opened at image "), "{opened}");
    let open = world.stdout(&format!("{corrupted} --gate open"));
    let from_the_start = "the gate was open from the start to the end";
    assert!(open.contains(from_the_start), "{open}");
    let without = world.stdout(&format!("{corrupted} --gate off"));
    assert!(!without.contains("gate"), "{without}");
}
