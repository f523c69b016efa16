//! The command as a user types it.

/// Training, anchors, adaptation: interrupted, resumed, mistaken.
mod adapt;

/// Corrupted data sets: layout, seeds, blocks, resuming, every mistake.
mod corrupt;

/// Networks that come as graphs.
mod graphs;

/// The first thing that is tried.
mod demo;

/// Services, the demo of one, and stored streams.
mod serve;

/// Documents and results.
mod tables;

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder with a tiny PyTorch file, and the command running in it.
struct World(TempDir);

/// The command under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ttac");

/// Runs a command that has to end with a status, and shows what it said if it does not.
pub fn ended(command: &mut Command, code: i32) -> Output {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}:\n{errors}");
    output
}

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
        let mut command = Command::new(PROGRAM);
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
        let output = ended(&mut self.ttac(arguments), 0);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Standard error of a command that has to fail with status 2.
    fn error(&self, arguments: &str) -> String {
        let output = ended(&mut self.ttac(arguments), 2);
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs a command that has to fail with status 2, and with all of these words in its message.
    fn fails_with(&self, arguments: &str, words: &[&str]) {
        let error = self.error(arguments);
        for words in words {
            assert!(error.contains(words), "`{words}` is not in: {error}");
        }
    }

    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.stdout(arguments)).unwrap()
    }

    fn import(&self) {
        self.stdout(&format!("import tiny.pt {IMPORT}"));
    }

    /// A world with an imported model, and the images that it classifies.
    fn with_model_and_data() -> Self {
        let world = Self::new();
        world.import();
        world.make_cifar10();
        world
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
    let world = World::with_model_and_data();
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
    world.fails_with(
        "eval --model model.safetensors --data shapes10",
        &["expected `airplane`, `automobile`", "found `disk`"],
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
    world.fails_with(
        "eval --model model.safetensors --data cifar10",
        &["hint: `ttac fetch cifar10` brings it"],
    );
    assert!(!world.path("m").exists());
}

#[test]
fn an_empty_variable_is_not_set() {
    let world = World::new();
    world.import();
    let eval = "eval --model model.safetensors --data shapes10 --subset 20 --severity 1";
    let with = |corruption: &str, folder: &str| {
        let mut command = world.ttac(&format!("{eval} --corruption {corruption}"));
        let failed = ended(command.env("TTAC_FROST", folder), 2);
        String::from_utf8(failed.stderr).unwrap()
    };
    // The model has other classes; the images under snow were opened.
    let error = with("snow", "");
    assert!(error.starts_with("error: classes of"), "{error}");
    let error = with("frost", "");
    for words in [
        "error: invalid corruption: `frost` needs its photographs\n",
        "hint: `--frost-textures DIR` or `$TTAC_FROST` says where they lie",
    ] {
        assert!(error.contains(words), "{error}");
    }
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
        world.fails_with(&format!("{eval} {rest}"), &[expected]);
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
    world.fails_with(&folder, &["pictures/horse/b.png`: not a whole PNG"]);
    let result = world.json(&format!("{folder} --skip-bad --json"));
    assert_eq!(result["samples"], 10);
    assert_eq!(result["card"]["skipped"], 1);
    assert!(
        world
            .stdout(&format!("{folder} --skip-bad"))
            .contains("1 left out")
    );
}

/// An empty variable is as good as none.
#[test]
fn an_empty_frost_variable_names_no_folder() {
    let world = World::with_model_and_data();
    let eval = "eval --model model.safetensors --data cifar10 --subset 2 --severity 3 --corruption";
    let run = |corruption: &str, code: i32| {
        let mut command = world.ttac(&format!("{eval} {corruption}"));
        ended(command.env("TTAC_FROST", ""), code)
    };
    run("snow", 0);
    run("frost-like", 0);
    let error = String::from_utf8(run("frost", 2).stderr).unwrap();
    assert!(error.contains("`frost` needs its photographs"), "{error}");
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

/// What bash offers for the last word of a command line, by the script that `completions` prints.
fn completed_by_bash(script: &Path, words: &[&str]) -> Vec<String> {
    let [.., previous, current] = words else {
        panic!("a command line has at least two words")
    };
    let program = format!(
        "source '{}'; COMP_WORDS=({}); COMP_CWORD={}; _ttac ttac '{current}' '{previous}'; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        words.join(" "),
        words.len() - 1
    );
    let output = Command::new("bash").args(["-c", &program]).output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    output.lines().map(str::to_owned).collect()
}

#[test]
fn completions_complete_commands_and_options() {
    let world = World::new();
    let script = world.path("ttac.bash");
    std::fs::write(&script, world.stdout("completions bash")).unwrap();
    assert_eq!(completed_by_bash(&script, &["ttac", "im"]), ["import"]);
    assert_eq!(
        completed_by_bash(&script, &["ttac", "e"]),
        ["export", "eval"]
    );
    assert_eq!(
        completed_by_bash(&script, &["ttac", "import", "--al"]),
        ["--allow-partial"]
    );
    assert_eq!(
        completed_by_bash(&script, &["ttac", "corrupt", "--format", ""]),
        ["npy", "folder"]
    );

    // The other shells are not at hand: their scripts offer every command that the help lists.
    let help = world.stdout("--help");
    let commands = help.split("Commands:\n").nth(1).unwrap();
    let commands = commands.lines().take_while(|line| !line.is_empty());
    // Lines that go on are indented further.
    let commands: Vec<&str> = commands
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|command| !command.is_empty())
        .collect();
    assert!(commands.len() >= 14 && commands.contains(&"completions"));
    let (zsh, fish) = (
        world.stdout("completions zsh"),
        world.stdout("completions fish"),
    );
    for command in commands {
        assert!(zsh.contains(&format!("'{command}:")), "{command}");
        assert!(fish.contains(&format!("-a \"{command}\"")), "{command}");
    }
    world.fails_with("completions abacus", &["abacus", "bash", "fish", "zsh"]);
}

#[test]
fn speed_is_measured_and_reported() {
    let world = World::new();
    let tiny = "--arch resnet20-cifar --set depth=8 --set width=4 --repeats 3";
    for (work, method) in [
        ("train", Value::Null),
        ("norm", Value::Null),
        ("eval", Value::Null),
        ("adapt", "ttac".into()),
    ] {
        let start = Instant::now();
        let result = world.json(&format!("speed {tiny} --batch-size 2 --work {work} --json"));
        let wall = start.elapsed().as_secs_f64();
        assert_eq!(result["work"], work);
        assert_eq!(result["batch"], 2);
        assert_eq!(result["method"], method);
        let number = |name: &str| result[name].as_f64().unwrap();
        let (minimum, median) = (number("minimum_seconds"), number("median_seconds"));
        assert!(0.0 < minimum && minimum <= median, "{result}");
        // One run to warm up, and three that are measured.
        assert!(3.0 * minimum + median < wall, "{wall} s: {result}");
        // Reading a number from its digits may round its last bit.
        let rate = number("images_per_second") * minimum / 2.0;
        assert!((rate - 1.0).abs() < 1e-12, "{result}");
        // A step of adaptation is timed beside its parts.
        let parts = &result["parts_minimum_seconds"];
        let names: Vec<&String> = parts
            .as_object()
            .into_iter()
            .flat_map(|p| p.keys())
            .collect();
        assert_eq!(
            names,
            if work == "adapt" {
                vec!["eval", "train"]
            } else {
                vec![]
            }
        );
    }
    let text = world.stdout(&format!(
        "speed {tiny} --batch-size 2 --implementation burn"
    ));
    assert!(
        text.starts_with("resnet20-cifar batch 2: ")
            && text.contains(" ms in the middle of 3 runs, ")
            && text.contains(" images/s"),
        "{text}"
    );
    let error = world.error("speed --arch resnet20-cifar --set depth");
    assert_eq!(error, "error: `--set depth`: expected FIELD=VALUE\n");
}
