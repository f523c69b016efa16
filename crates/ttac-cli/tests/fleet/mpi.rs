//! Training by several processes that MPI starts.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::engines::{Process, program, wait_for};
use crate::world::World;

/// Twelve steps, four of them in an epoch.
const TRAIN: &str = "train --data shapes10 --subset 220 --arch resnet20-cifar --set depth=8 --set width=4 --held-out 20 \
                     --batch-size 48 --epochs 3 --shards 6 --threads 1";

fn mpirun(world: &World, program: &PathBuf, ranks: usize, arguments: &str) -> Command {
    let plain = world.ttac(arguments);
    let mut command = Command::new(program);
    command.args(["--oversubscribe", "-np", &ranks.to_string()]);
    command
        .arg(plain.get_program())
        .args(plain.get_args())
        .arg("--mpi");
    command.current_dir(world.path("."));
    // A container's user is often root, and has no other machine to reach.
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    command.env("OMPI_MCA_plm", "isolated");
    command
}

fn fingerprint(world: &World, program: &PathBuf, ranks: usize, arguments: &str) -> Value {
    let output = mpirun(world, program, ranks, &format!("{arguments} --json"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{ranks} processes: {errors}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    result["fingerprint"].clone()
}

#[test]
fn any_number_of_processes_trains_to_the_same_bits() {
    let Some(program) = program("TTAC_MPIRUN") else {
        return;
    };
    let world = World::new();
    let alone = world.json(&format!("{TRAIN} --out alone"))["fingerprint"].clone();
    assert!(alone.is_string());
    for ranks in 1..=3 {
        let train = format!("{TRAIN} --out by-{ranks}");
        assert_eq!(
            fingerprint(&world, &program, ranks, &train),
            alone,
            "{ranks} processes"
        );
    }
    let log = |run: &str| {
        let text = std::fs::read_to_string(world.path(run).join("log.jsonl")).unwrap();
        let lines = text.lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            (line["loss"].clone(), line["held_out_error_percent"].clone())
        });
        lines.collect::<Vec<_>>()
    };
    assert_eq!(log("by-3"), log("alone"));
    // The parts of a batch do make a difference.
    let other = TRAIN.replace("--shards 6", "--shards 3");
    assert_ne!(
        world.json(&format!("{other} --out other"))["fingerprint"],
        alone
    );
}

#[test]
fn a_run_of_several_processes_that_is_killed_goes_on_by_another_number_of_them() {
    let Some(program) = program("TTAC_MPIRUN") else {
        return;
    };
    let world = World::new();
    let long = TRAIN.replace("--epochs 3", "--epochs 12");
    let alone = world.json(&format!("{long} --out alone"))["fingerprint"].clone();
    let train = format!("{long} --save-every 1 --out part");
    let state = world.path("part/training.safetensors");
    let mut command = mpirun(&world, &program, 2, &train);
    let mut process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    wait_for("there is a state", || {
        state.exists() || !process.is_running()
    });
    process.kill();
    assert!(state.exists());
    // mpirun's children notice that it is gone, and write nothing more.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let resumed = format!("{train} --resume");
    assert_eq!(fingerprint(&world, &program, 3, &resumed), alone);
}

#[test]
fn more_processes_than_shards_are_refused() {
    let Some(program) = program("TTAC_MPIRUN") else {
        return;
    };
    let world = World::new();
    let train = TRAIN.replace("--shards 6", "--shards 1");
    let output = mpirun(&world, &program, 2, &format!("{train} --out none"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("2 processes share 1 shards"), "{errors}");
}
