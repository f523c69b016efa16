//! The command as a user types it.

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
    for command in ["fetch", "import", "eval"] {
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
        world.error("eval --model tiny.pt --data cifar10"),
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
