//! `ttac corrupt`

use std::path::Path;

use serde_json::{Value, json};
use ttac_corrupt::{Corruption, Corruptor, Severity};

use crate::{PROGRAM, World, ended};

const IMAGE: usize = 32 * 32 * 3;

/// Shape and bytes of an array, read by another program's rules.
fn array(path: &Path) -> (Vec<u64>, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let file = npyz::NpyFile::new(bytes.as_slice()).unwrap();
    assert_eq!(file.order(), npyz::Order::C);
    (file.shape().to_vec(), file.into_vec().unwrap())
}

fn manifest(world: &World, folder: &str) -> Value {
    let text = std::fs::read(world.path(folder).join("manifest.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<String> = entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn arrays_have_the_layout_of_cifar10_c() {
    let world = World::new();
    let held_out = "corrupt --data shapes10 --corruption held-out --subset 30";
    let result = world.json(&format!("{held_out} --severity all --out all --json"));
    assert_eq!(result["images"], 4 * 5 * 30);
    assert_eq!(
        names(&world.path("all")),
        [
            "gaussian_blur.npy",
            "labels.npy",
            "manifest.json",
            "saturate.npy",
            "spatter.npy",
            "speckle_noise.npy"
        ]
    );

    let bytes = std::fs::read(world.path("all/spatter.npy")).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
    let header_end = bytes.len() - 150 * IMAGE;
    assert_eq!(header_end % 64, 0);
    let header = String::from_utf8_lossy(&bytes[10..header_end]);
    for part in [
        "'descr': '|u1'",
        "'fortran_order': False",
        "'shape': (150, 32, 32, 3",
    ] {
        assert!(header.contains(part), "{header}");
    }
    assert!(header.ends_with('\n'));

    // Severities follow each other, and each is what it is alone.
    let (shape, all) = array(&world.path("all/spatter.npy"));
    assert_eq!(shape, [150, 32, 32, 3]);
    for severity in 1..=5 {
        let out = format!("severity{severity}");
        world.stdout(&format!("{held_out} --severity {severity} --out {out}"));
        let (shape, alone) = array(&world.path(&out).join("spatter.npy"));
        assert_eq!(shape, [30, 32, 32, 3]);
        assert!(all[(severity - 1) * 30 * IMAGE..].starts_with(&alone));
    }
    let (shape, labels) = array(&world.path("all/labels.npy"));
    assert_eq!(shape, [150]);
    assert_eq!(labels[..30], labels[120..]);
    let (shape, alone) = array(&world.path("severity3/labels.npy"));
    assert_eq!(shape, [30]);
    assert_eq!(labels[..30], alone);

    let manifest = manifest(&world, "all");
    assert_eq!(manifest["data"], "shapes10");
    assert_eq!(manifest["samples"], 30);
    assert_eq!(manifest["severities"], json!([1, 2, 3, 4, 5]));
    assert_eq!(manifest["seed"], 0);
    assert_eq!(
        manifest["program"],
        concat!("ttac ", env!("CARGO_PKG_VERSION"))
    );
    let made = &manifest["corruptions"][2];
    assert_eq!(made["name"], "spatter");
    assert_eq!(made["shape"], json!([150, 32, 32, 3]));
    assert_eq!(made["blake3"], blake3::hash(&bytes).to_hex().as_str());
    assert_eq!(result["corruptions"][2]["blake3"], made["blake3"]);
}

#[test]
fn the_seed_decides_and_nothing_else() {
    let world = World::new();
    let run = |out: &str, rest: &str| {
        let command = "corrupt --data shapes10 --corruption all --severity 4 --subset 12";
        world.json(&format!("{command} --out {out} --json {rest}"))["corruptions"].clone()
    };
    let digest = |made: &Value| made["blake3"].clone();
    let (first, again, other) = (
        run("first", "--seed 7"),
        run("again", "--seed 7 --threads 1"),
        run("other", "--seed 8"),
    );
    for (index, corruption) in Corruption::STANDARD.into_iter().enumerate() {
        assert_eq!(digest(&first[index]), digest(&again[index]), "{corruption}");
        let same = digest(&first[index]) == digest(&other[index]);
        assert_eq!(same, !corruption.is_random(), "{corruption}");
    }
    // There are no photographs of frost here, and the name says so.
    assert_eq!(first[8]["name"], "frost-like");
    assert!(world.path("first/frost-like.npy").exists());
    assert!(!world.path("first/frost.npy").exists());
}

#[test]
fn blocks_leave_no_trace() {
    let world = World::new();
    world.make_cifar10();
    // One image more than two blocks.
    world.stdout(
        "corrupt --data cifar10 --corruption gaussian-noise --severity 5 --subset 2001 --out c",
    );
    let records = std::fs::read(world.path("data/cifar10/test_batch.bin")).unwrap();
    let clean: Vec<u8> = records
        .chunks(3073)
        .take(2001)
        .flat_map(|record| {
            (0..1024).flat_map(|at| [record[1 + at], record[1025 + at], record[2049 + at]])
        })
        .collect();
    let expected = Corruptor::new(0)
        .apply(
            Corruption::GaussianNoise,
            Severity::STRONGEST,
            &clean,
            32,
            32,
            0,
        )
        .unwrap();
    let (_, found) = array(&world.path("c/gaussian_noise.npy"));
    assert!(found == expected);
    let (_, labels) = array(&world.path("c/labels.npy"));
    assert!(
        labels
            .iter()
            .enumerate()
            .all(|(i, &label)| label as usize == i % 10)
    );
}

#[test]
fn an_interrupted_command_goes_on_and_other_images_are_refused() {
    let world = World::new();
    let run = "corrupt --data shapes10 --severity 2 --subset 10 --out c";
    world.stdout(&format!("{run} --corruption spatter"));
    let before = std::fs::read(world.path("c/spatter.npy")).unwrap();
    let text = world.stdout(&format!("{run} --corruption held-out"));
    assert!(text.contains("spatter            already there"), "{text}");
    assert!(
        text.contains("30 images in ") && text.contains("saturate "),
        "{text}"
    );
    assert_eq!(std::fs::read(world.path("c/spatter.npy")).unwrap(), before);
    let listed = manifest(&world, "c")["corruptions"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(listed, 4);

    let error = world.error(&format!("{run} --corruption snow --seed 1"));
    assert_eq!(
        error,
        "error: `c/manifest.json` is not the manifest of these images: expected seed 1, found 0\n\n\
         hint: choose another folder with `--out`, or remove this one\n"
    );
    assert!(!world.path("c/snow.npy").exists());
}

#[test]
fn folders_hold_the_same_pixels_as_arrays() {
    let world = World::new();
    let run = "corrupt --data shapes10 --corruption fog --severity all --subset 10";
    world.stdout(&format!("{run} --out arrays"));
    world.stdout(&format!("{run} --out folders --format folder"));
    assert_eq!(names(&world.path("folders")), ["fog", "manifest.json"]);
    let (_, pixels) = array(&world.path("arrays/fog.npy"));
    let (_, labels) = array(&world.path("arrays/labels.npy"));
    let classes = manifest(&world, "folders")["classes"].clone();
    for (index, expected) in pixels.chunks(IMAGE).enumerate() {
        let (severity, id) = (1 + index / 10, index % 10);
        let class = classes[labels[id] as usize].as_str().unwrap();
        let path = world.path(&format!("folders/fog/{severity}/{class}/{id:08}.png"));
        let picture = image::open(path).unwrap().to_rgb8();
        assert_eq!(picture.as_raw(), expected);
    }
    // A folder that is not ours is left alone.
    std::fs::create_dir(world.path("folders/snow")).unwrap();
    let snow = run.replace("fog", "snow");
    world.fails_with(
        &format!("{snow} --out folders --format folder"),
        &["exists and is not in the manifest"],
    );
}

#[test]
fn a_preview_shows_all_corruptions() {
    let world = World::new();
    world.stdout("corrupt --data shapes10 --preview sheet.png");
    let sheet = image::open(world.path("sheet.png")).unwrap();
    // A row for each, and two pictures of clean images and of every severity.
    assert_eq!(sheet.height(), 4 + 19 * 100);
    assert_eq!(sheet.width(), 8 + 8 * 17 + 12 * 100);
}

#[test]
fn a_full_disk_leaves_no_half_file() {
    let world = World::new();
    let run = |arguments: &str| {
        // A limit on the size of files fails like a full disk does: in the middle of a write.
        let limited = format!(
            "trap '' XFSZ; ulimit -f 2000; exec {PROGRAM} corrupt --data shapes10 --severity all --subset 1000 {arguments}"
        );
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &limited]).current_dir(world.path(""));
        let failed = ended(shell.env_remove("TTAC_FROST"), 2);
        String::from_utf8(failed.stderr).unwrap()
    };
    let error = run("--corruption saturate --out full");
    assert!(
        error.contains("error: cannot write `full/saturate.npy`: "),
        "{error}"
    );
    assert_eq!(names(&world.path("full")), ["labels.npy"]);
}

#[test]
fn mistakes_are_answered_with_help() {
    let world = World::new();
    std::fs::write(world.path("file"), "").unwrap();
    let run = |rest: &str| world.error(&format!("corrupt --data shapes10 --subset 5 {rest}"));
    insta::assert_snapshot!(
        "corrupt-errors",
        [
            run("--corruption snow --severity 0 --out c"),
            run("--corruption snow --severity 6 --out c"),
            run("--corruption snow --severity strong --out c"),
            run("--corruption snwo --severity 1 --out c"),
            run("--corruption everything --severity 1 --out c"),
            run("--corruption snow --severity 1 --out file"),
            run("--corruption snow --severity 1 --out file/below"),
            run("--corruption frost --severity 1 --out c --frost-textures nowhere"),
            run("--corruption snow --severity 1"),
            world.error("corrupt --data shape10 --corruption snow --severity 1 --out c"),
        ]
        .join("---\n")
    );
    assert!(!world.path("c").exists());
}
