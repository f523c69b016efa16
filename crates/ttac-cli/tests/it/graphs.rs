//! Networks that come as graphs, as a user imports, looks at, adapts and exports them.
//!
//! The fixtures are `graph/*` below `$TTAC_DATA` or the folder `../shared/data`; where they are absent, that is said and passed.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{World, ended};

/// The folder of the fixtures.
fn fixtures() -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = std::env::var_os("TTAC_DATA").map(PathBuf::from);
    let places = named.into_iter().chain([workspace.join("../shared/data")]);
    let mut folders = places.map(|place| place.join("graph"));
    let found = folders.find(|folder| folder.is_dir());
    if found.is_none() {
        note("skipped: needs `graph/*.pt2`");
    }
    found
}

#[expect(clippy::print_stderr, reason = "a test's notes")]
fn note(line: &str) {
    eprintln!("{line}");
}

/// A world with a network as `net.pt2` and PyTorch's results for it.
fn with_network(name: &str) -> Option<World> {
    let folder = fixtures()?;
    let world = World::new();
    for (ending, to) in [
        ("pt2", "net.pt2"),
        ("reference.safetensors", "reference.safetensors"),
    ] {
        std::fs::copy(folder.join(format!("{name}.{ending}")), world.path(to)).unwrap();
    }
    Some(world)
}

const NAMES: &str = "c0,c1,c2,c3,c4,c5,c6,c7,c8,c9";
const IMPORT: &str = "import net.pt2 --normalise cifar10 --out model.safetensors";

#[test]
fn an_import_says_what_it_needs() {
    let Some(world) = with_network("resnet8_optA") else {
        return;
    };
    world.fails_with(
        "import net.pt2 --out model.safetensors",
        &[
            "`--normalise` is missing",
            "a wrong guess silently costs accuracy",
        ],
    );
    world.fails_with(
        &format!("{IMPORT} --class-names a,b,c"),
        &["`--class-names` names 3 classes, and the network tells 10 apart"],
    );
    world.fails_with(
        &format!("{IMPORT} --classes 11"),
        &["the network tells 10 classes apart"],
    );
    world.fails_with(
        &format!("{IMPORT} --arch resnet20-cifar"),
        &["describes its network", "`--arch`"],
    );
    world.fails_with(&format!("{IMPORT} --features nothing"), &["nothing"]);
    world.fails_with(&format!("{IMPORT} --size 64"), &["32 x 32"]);
    std::fs::write(
        world.path("cut.pt2"),
        &std::fs::read(world.path("net.pt2")).unwrap()[..5000],
    )
    .unwrap();
    world.fails_with(&IMPORT.replace("net.pt2", "cut.pt2"), &["cut.pt2"]);
    assert!(
        !world.path("model.safetensors").exists(),
        "nothing is left behind"
    );
}

/// Changes the first value of a tensor in a safetensors file.
fn change(path: &Path, name: &str, by: f32) {
    let mut bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk::<8>().unwrap()) as usize;
    let head: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let at = 8 + length + head[name]["data_offsets"][0].as_u64().unwrap() as usize;
    let value = f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    bytes[at..at + 4].copy_from_slice(&(value + by).to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn an_import_is_compared_with_pytorch() {
    let Some(world) = with_network("resnet8_optA") else {
        return;
    };
    let verified = format!("{IMPORT} --verify reference.safetensors");
    let text = world.stdout(&verified);
    for words in [
        "eval.logits",
        "batch.grad.conv1.weight",
        "largest difference over largest value",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let json = world.json(&format!("{verified} --json"));
    assert!(
        json["largest_difference"].as_f64().unwrap() < 1e-5,
        "{json}"
    );
    assert!(json["differences"]["eval.features"].as_f64().unwrap() < 1e-5);

    // A score that is off by a thousandth.
    change(&world.path("reference.safetensors"), "eval.logits", 1e-3);
    let output = ended(&mut world.ttac(&verified), 1);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("`eval.logits` and PyTorch's differ"),
        "{error}"
    );
}

#[test]
fn features_are_taken_where_the_user_says() {
    let Some(world) = with_network("resnet8_optA") else {
        return;
    };
    let import = format!("{IMPORT} --class-names {NAMES}");
    let default = world.json(&format!("{import} --json"));
    let same = world.json(&format!("{import} --features view --json"));
    assert_eq!(same["fingerprint"], default["fingerprint"]);
    let scores = world.json(&format!("{import} --features linear --json"));
    assert_ne!(scores["fingerprint"], default["fingerprint"]);
    pictures(&world, "pictures", 2);
    world.fails_with(
        "adapt --model model.safetensors --data image-folder --root pictures --batch-size 20 --minibatch 20 \
         --no-queue --method t3a",
        &["`t3a` needs a linear classifier, and this network has none"],
    );
}

#[test]
fn a_network_is_described_before_and_after_its_import() {
    let Some(world) = with_network("mobilenet_v2") else {
        return;
    };
    let text = world.stdout("info net.pt2");
    for words in [
        "operations",
        "conv2d",
        "batch-norm",
        "32 x 32",
        "features      1280",
        "classes       10",
        "`ttac import`",
    ] {
        assert!(text.contains(words), "`{words}` is not in: {text}");
    }
    let json = world.json("info net.pt2 --json");
    assert_eq!(json["kind"], "network");
    assert_eq!(json["images"], serde_json::json!([32, 32]));
    assert_eq!(json["features"], 1280);
    assert_eq!(json["unsupported"], serde_json::json!([]));
    let imported = world.json(&format!("{IMPORT} --class-names {NAMES} --json"));
    let info = world.json("info model.safetensors --json");
    assert_eq!(info["fingerprint"], imported["fingerprint"]);
    assert_eq!(info["header"]["classes"][9], "c9");
    let text = world.stdout("info model.safetensors");
    assert!(
        text.contains("conv2d") && !text.contains("{\"family\""),
        "{text}"
    );
}

#[test]
fn an_exported_network_is_the_imported_one() {
    let Some(world) = with_network("mobilenet_v2") else {
        return;
    };
    let imported = world.json(&format!("{IMPORT} --json"));
    let said = world.stdout("export model.safetensors --like net.pt2 --out again.pt2");
    assert!(said.contains("torch.export.load"), "{said}");
    let again = world.json(&format!(
        "{} --json",
        IMPORT.replace("net.pt2", "again.pt2")
    ));
    assert_eq!(again["fingerprint"], imported["fingerprint"]);
    world.stdout("export model.safetensors --format state-dict --out state.safetensors");
    let listed = world.stdout("info state.safetensors");
    assert!(listed.contains("features.0.0.weight"), "{listed}");
    world.fails_with(
        "export model.safetensors --like net.pt2 --format state-dict --out no.pt2",
        &["leave out `--format`"],
    );
}

/// Writes pictures of noise into class folders.
fn pictures(world: &World, folder: &str, count: usize) {
    let mut state = 1_u32;
    for class in NAMES.split(',') {
        let folder = world.path(folder).join(class);
        std::fs::create_dir_all(&folder).unwrap();
        for number in 0..count {
            let picture = image::RgbImage::from_fn(32, 32, |_, _| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let [_, red, green, blue] = state.to_le_bytes();
                image::Rgb([red, green, blue])
            });
            picture
                .save(folder.join(format!("{number:04}.png")))
                .unwrap();
        }
    }
}

#[test]
fn an_imported_network_is_evaluated_anchored_and_adapted() {
    let Some(world) = with_network("resnet8_optA") else {
        return;
    };
    world.stdout(&format!("{IMPORT} --class-names {NAMES}"));
    pictures(&world, "pictures", 6);
    let of_pictures = "--model model.safetensors --data image-folder --root pictures";
    let evaluated = world.json(&format!("eval {of_pictures} --json"));
    assert_eq!(evaluated["samples"], 60);
    world.stdout(&format!(
        "anchors {of_pictures} --labels true --out anchors"
    ));
    let adapt =
        format!("adapt {of_pictures} --anchors anchors --batch-size 20 --minibatch 20 --no-queue");
    let adapted = world.json(&format!("{adapt} --save-model adapted.safetensors --json"));
    assert_eq!(adapted["samples"], 60);
    // What was learned goes back into the file that the network came from.
    world.stdout("export adapted.safetensors --like net.pt2 --out adapted.pt2");
    let back = world.json(&format!(
        "{} --json",
        IMPORT.replace("net.pt2", "adapted.pt2")
    ));
    let info = world.json("info adapted.safetensors --json");
    assert_eq!(back["fingerprint"], info["fingerprint"]);
}
