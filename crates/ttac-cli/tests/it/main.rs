//! The command as a user types it.

/// Training, anchors, adaptation: interrupted, resumed, mistaken.
mod adapt;

/// Corrupted data sets: layout, seeds, blocks, resuming, every mistake.
mod corrupt;

/// The first thing that is tried.
mod demo;

/// Documents and results.
mod tables;

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a tiny PyTorch file, and the command running in it.
struct World(TempDir);

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ttac/tests/fixtures");
        let weights = fixtures.join("checkpoints/zip.pt");
        std::fs::copy(weights, folder.path().join("tiny.pt")).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn ttac(&self, arguments: &str) -> Command {
        let mut command = Command::cargo_bin("ttac").unwrap();
        command
            .args(arguments.split_whitespace())
            .current_dir(self.0.path())
            .env("TTAC_DATA", self.path("data"))
            .env_remove("TTAC_FROST")
            .env("COLUMNS", "100");
        command
    }

    /// Standard output of a command that has to succeed.
    fn stdout(&self, arguments: &str) -> String {
        let output = self.ttac(arguments).assert().success();
        String::from_utf8(output.get_output().stdout.clone()).unwrap()
    }

    /// Standard error of a command that has to fail with status 2.
    fn error(&self, arguments: &str) -> String {
        let output = self.ttac(arguments).assert().code(2);
        assert!(output.get_output().stdout.is_empty());
        String::from_utf8(output.get_output().stderr.clone()).unwrap()
    }

    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.stdout(arguments)).unwrap()
    }

    fn import(&self) {
        self.stdout(&format!("import tiny.pt {IMPORT}"));
    }

    /// 10,000 images of noise in CIFAR-10's layout.
    fn make_cifar10(&self) {
        let mut state = 1_u32;
        let mut bytes = Vec::with_capacity(10_000 * 3073);
        for i in 0..10_000 {
            bytes.push((i % 10) as u8);
            bytes.extend((0..3072).map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            }));
        }
        std::fs::create_dir_all(self.path("data/cifar10")).unwrap();
        std::fs::write(self.path("data/cifar10/test_batch.bin"), bytes).unwrap();
    }
}

const IMPORT: &str = "--arch resnet20-cifar --set depth=8 --set width=4 --normalise imagenet \
                      --class-names cifar10 --out model.safetensors";

#[test]
fn help_is_readable() {
    let world = World::new();
    insta::assert_snapshot!("help", world.stdout("--help"));
    for command in ["fetch", "import", "eval", "corrupt"] {
        let help = world.stdout(&format!("{command} --help"));
        insta::assert_snapshot!(format!("help-{command}"), help);
    }
}

#[test]
fn an_import_can_be_described_exported_and_imported_again() {
    let world = World::new();
    let imported = world.json(&format!("import tiny.pt {IMPORT} --json"));
    assert_eq!(imported["loaded"], 37);
    assert_eq!(imported["missing"], serde_json::json!([]));
    let info = world.json("info model.safetensors --json");
    assert_eq!(info["fingerprint"], imported["fingerprint"]);
    assert_eq!(info["header"]["classes"][9], "truck");
    assert_eq!(info["header"]["architecture"]["width"], 4);
    let text = world.stdout("info model.safetensors");
    assert!(
        text.contains("images        32 x 32, mean [0.485, 0.456, 0.406]"),
        "{text}"
    );

    world.stdout("export model.safetensors --out weights.safetensors");
    let listed = world.stdout("info weights.safetensors");
    assert!(
        listed.contains("tensor        layer1.0.conv1.weight [4, 4, 3, 3]"),
        "{listed}"
    );
    let again = world.json(&format!("import weights.safetensors {IMPORT} --json"));
    assert_eq!(again["fingerprint"], imported["fingerprint"]);
}

#[test]
fn eval_keeps_its_json_contract() {
    let world = World::new();
    world.import();
    world.make_cifar10();
    let command = "eval --model model.safetensors --data cifar10 --subset 300 --predictions p.csv";
    let result = world.json(&format!("{command} --json"));
    let keys: Vec<&String> = result.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "architecture",
            "card",
            "error_percent",
            "fingerprint",
            "images_per_second",
            "model",
            "samples",
            "seconds",
            "wrong"
        ]
    );
    assert_eq!(result["samples"], 300);
    assert_eq!(result["card"]["method"], "test");
    assert_eq!(result["card"]["subset"], 300);
    let wrong = result["wrong"].as_f64().unwrap();
    assert_eq!(result["error_percent"].as_f64().unwrap(), wrong / 3.0);

    // The file of predictions says the same.
    let predictions = std::fs::read_to_string(world.path("p.csv")).unwrap();
    let mut lines = predictions.lines();
    assert_eq!(lines.next(), Some("id,label,predicted,confidence"));
    let counted = lines.filter(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        fields[1] != fields[2]
    });
    assert_eq!(counted.count() as f64, wrong);

    // Neither the batch size nor the number of threads changes a prediction.
    let other = world.json(&format!("{command} --json --batch-size 7 --threads 1"));
    assert_eq!(other["wrong"], result["wrong"]);
    let text = world.stdout(command);
    assert!(
        text.starts_with("error ") && text.contains("of 300 wrong"),
        "{text}"
    );
}

#[test]
fn a_model_and_data_of_different_classes_do_not_go_together() {
    let world = World::new();
    world.make_cifar10();
    let partial = "import tiny.pt --arch resnet20-cifar --set depth=8 --set width=4 \
                   --normalise none --classes 7 --allow-partial --out seven.safetensors";
    world.stdout(partial);
    let error = world.error("eval --model seven.safetensors --data cifar10");
    assert_eq!(
        error,
        "error: classes of `seven.safetensors` and cifar10: expected 7 in the model, found 10 in the data\n"
    );
}

#[test]
fn as_many_classes_of_other_things_are_refused() {
    let world = World::new();
    world.import();
    let error = world.error("eval --model model.safetensors --data shapes10");
    assert!(
        error.contains("expected `airplane`, `automobile`") && error.contains("found `disk`"),
        "{error}"
    );
}

#[test]
fn mistakes_are_answered_with_help() {
    let world = World::new();
    let import = |rest: &str| world.error(&format!("import tiny.pt {rest}"));
    insta::assert_snapshot!("errors", [
        import("--arch resnet2-cifar --normalise imagenet --out m"),
        import("--arch resnet20-cifar --normalise imagnet --out m"),
        import("--arch resnet20-cifar --set depth --normalise none --out m"),
        import("--arch resnet20-cifar --set depth=9 --normalise none --out m"),
        import("--arch resnet20-cifar --set depth=8 --set width=4 --classes 100 --normalise none --out m"),
        world.error("info missing.pt"),
        world.error("fetch cifar11"),
        world.error("fetch usps --root usps"),
        world.error("fetch mnist --via debian"),
        world.error("eval --model tiny.pt --data cifar10"),
        world.error("eval --model tiny.pt --data cifar10-c --corruption snow"),
        world.error("--device cuda eval --model tiny.pt --data cifar10"),
        world.error("--device abacus eval --model tiny.pt --data cifar10"),
    ]
    .join("---\n"));
    world.import();
    let error = world.error("eval --model model.safetensors --data cifar10");
    assert!(
        error.contains("hint: `ttac fetch cifar10` brings it"),
        "{error}"
    );
    assert!(!world.path("m").exists());
}

#[test]
fn eval_reads_corruptions_and_folders_of_pictures() {
    let world = World::new();
    world.import();
    // Five severities of two images each; a manifest is not needed for those.
    let folder = world.path("data/cifar10-c");
    std::fs::create_dir_all(&folder).unwrap();
    let array = |shape: &str, data: Vec<u8>| {
        let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n");
        let length = (text.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), &data].concat()
    };
    let pixels = (0..10 * 3072_u32).map(|i| (i * i % 251) as u8).collect();
    std::fs::write(folder.join("snow.npy"), array("(10, 32, 32, 3)", pixels)).unwrap();
    std::fs::write(folder.join("labels.npy"), array("(10,)", (0..10).collect())).unwrap();
    let eval = "eval --model model.safetensors --data";
    let result = world.json(&format!(
        "{eval} cifar10-c --corruption snow --severity 3 --json"
    ));
    assert_eq!(result["samples"], 2);
    assert_eq!(result["card"]["data"], "cifar10-c");
    assert_eq!(result["card"]["corruption"], "snow");
    assert_eq!(result["card"]["severity"], 3);
    let text = world.stdout(&format!("{eval} cifar10-c --corruption snow --severity 3"));
    assert!(text.contains("on cifar10-c test snow 3"), "{text}");
    for (rest, expected) in [
        (
            "cifar10-c --corruption snwo --severity 3",
            "did you mean `snow`?",
        ),
        (
            "cifar10-c --corruption snow --severity 6",
            "expected 1 to 5, found 6",
        ),
        ("cifar10-c", "`cifar10-c` needs one"),
        (
            "cifar10 --corruption snow --severity 3",
            "hint: `ttac fetch cifar10` brings it",
        ),
        ("cifar-10", "hint: did you mean `cifar10`?"),
    ] {
        let error = world.error(&format!("{eval} {rest}"));
        assert!(error.contains(expected), "{error}");
    }

    // Ten classes with one picture each, one of which is broken.
    for (class, name) in ttac::data::CIFAR10_CLASSES.iter().enumerate() {
        let folder = world.path("pictures").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let picture = image::RgbImage::from_pixel(40, 50, image::Rgb([class as u8; 3]));
        picture.save(folder.join("a.png")).unwrap();
    }
    std::fs::write(world.path("pictures/horse/b.png"), "broken").unwrap();
    let folder = format!("{eval} image-folder --root pictures");
    let error = world.error(&folder);
    assert!(
        error.contains("pictures/horse/b.png`: not a whole PNG"),
        "{error}"
    );
    let result = world.json(&format!("{folder} --skip-bad --json"));
    assert_eq!(result["samples"], 10);
    assert_eq!(result["card"]["skipped"], 1);
    assert!(
        world
            .stdout(&format!("{folder} --skip-bad"))
            .contains("1 left out")
    );
}

#[test]
fn a_failed_import_keeps_the_old_checkpoint() {
    let world = World::new();
    world.import();
    let before = std::fs::read(world.path("model.safetensors")).unwrap();
    std::fs::write(world.path("tiny.pt"), "garbage").unwrap();
    world.error(&format!("import tiny.pt {IMPORT}"));
    assert_eq!(
        std::fs::read(world.path("model.safetensors")).unwrap(),
        before
    );
}

#[test]
fn the_list_of_data_sets_says_what_is_installed() {
    let world = World::new();
    let list = world.json("fetch --list --json");
    assert_eq!(list[0]["name"], "cifar10");
    assert_eq!(list[0]["installed"], false);
    assert_eq!(list[0]["sources"][1]["via"], "npm");
    assert!(world.stdout("fetch --list").contains("digest unknown"));
    assert!(world.stdout("fetch --list").contains("not installed"));
}

#[test]
fn completions_name_the_commands() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            world
                .stdout(&format!("completions {shell}"))
                .contains("import")
        );
    }
}

#[test]
fn speed_is_measured_and_reported() {
    let world = World::new();
    let tiny = "--arch resnet20-cifar --set depth=8 --set width=4 --batch-size 2 --repeats 1";
    for work in ["train", "norm", "eval"] {
        let result = world.json(&format!("speed {tiny} --work {work} --json"));
        assert_eq!(result["work"], work);
        assert!(result["minimum_seconds"].as_f64().unwrap() > 0.0);
    }
    let text = world.stdout(&format!("speed {tiny} --implementation burn"));
    assert!(text.contains("images/s"), "{text}");
    let error = world.error("speed --arch resnet20-cifar --set depth");
    assert_eq!(error, "error: `--set depth`: expected FIELD=VALUE\n");
}
