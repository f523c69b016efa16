//! The job files of `configs/cluster`: run by a real Slurm on this machine, and held against Kubernetes' schema.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::engines::{Broker, Process, free_port, program, say, wait_for};
use crate::world::World;

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/cluster")
}

#[test]
fn manifests_follow_the_schema_of_kubernetes() {
    let Some(validate) = program("TTAC_KUBERNETES_VALIDATE") else {
        return;
    };
    let check = |file: &Path| {
        let output = Command::new(&validate)
            .arg("--strict")
            .arg(file)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    let manifest = configs().join("kubernetes.yaml");
    let (is_valid, said) = check(&manifest);
    assert!(is_valid, "{said}");
    // It does notice a wrong word.
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.yaml");
    let text = std::fs::read_to_string(manifest).unwrap();
    std::fs::write(&wrong, text.replace("parallelism:", "paralelism:")).unwrap();
    assert!(!check(&wrong).0);
}

/// A Slurm of this machine alone: its own keys, ports and folders.
struct Slurm {
    folder: PathBuf,
    _daemons: Vec<Process>,
}

impl Slurm {
    fn start(folder: &Path) -> Option<Self> {
        let slurmctld = program("TTAC_SLURMCTLD")?;
        let slurmd = slurmctld.with_file_name("slurmd");
        let munged = slurmctld.with_file_name("munged");
        if !slurmd.exists() || !munged.exists() {
            say("skipped: there is no slurmd or no munged beside slurmctld");
            return None;
        }
        if !Command::new("id")
            .arg("-u")
            .output()
            .unwrap()
            .stdout
            .starts_with(b"0\n")
        {
            say("skipped: slurmd starts jobs only for root");
            return None;
        }
        let at = |name: &str| folder.join(name).display().to_string();
        std::fs::write(at("key"), [7_u8; 128]).unwrap();
        Command::new("chmod")
            .args(["600", &at("key")])
            .status()
            .unwrap();
        for name in ["state", "spool"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim();
        let conf = format!(
            "ClusterName=ttac\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nAuthType=auth/munge\n\
             AuthInfo=socket={}\nStateSaveLocation={}\nSlurmdSpoolDir={}\nSlurmctldPidFile={}\nSlurmdPidFile={}\n\
             SlurmctldPort={}\nSlurmdPort={}\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/cons_tres\nReturnToService=2\nMpiDefault=none\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\n\
             PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP\n",
            at("socket"),
            at("state"),
            at("spool"),
            at("ctld.pid"),
            at("slurmd.pid"),
            free_port(),
            free_port(),
        );
        std::fs::write(at("slurm.conf"), conf).unwrap();
        let quiet = |command: &mut Command, log: &str| {
            let log = std::fs::File::create(at(log)).unwrap();
            command.stdout(log.try_clone().unwrap()).stderr(log);
            Process::start(command)
        };
        let mut munge = Command::new(munged);
        munge.args(["--force", "--foreground", "--num-threads=2"]);
        for (option, file) in [
            ("key-file", "key"),
            ("socket", "socket"),
            ("pid-file", "munge.pid"),
            ("seed-file", "seed"),
            ("log-file", "munge.log"),
        ] {
            munge.arg(format!("--{option}={}", at(file)));
        }
        let mut daemons = vec![quiet(&mut munge, "munged.out")];
        wait_for("munged listens", || Path::new(&at("socket")).exists());
        daemons.push(quiet(
            Command::new(slurmctld).args(["-D", "-f", &at("slurm.conf")]),
            "slurmctld.out",
        ));
        daemons.push(quiet(
            Command::new(slurmd).args(["-D", "-N", host, "-f", &at("slurm.conf")]),
            "slurmd.out",
        ));
        let slurm = Self {
            folder: folder.to_owned(),
            _daemons: daemons,
        };
        let start = std::time::Instant::now();
        loop {
            let said = slurm.said("sinfo", &["-h", "-o", "%t"]);
            if said.trim() == "idle" {
                return Some(slurm);
            }
            if start.elapsed().as_secs() > 60 {
                let log = |name: &str| std::fs::read_to_string(at(name)).unwrap_or_default();
                panic!(
                    "no node: {said}\n{}\n{}\n{}",
                    log("munged.out"),
                    log("slurmctld.out"),
                    log("slurmd.out")
                );
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
        command.stdin(Stdio::null());
        command
    }

    fn said(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

const SIX: &str = r#"
    [grid]
    model = "run/model.safetensors"
    data = "shapes10"
    subset = 40
    batch-size = 20
    seed = [0, 1, 2, 3, 4, 5]
    [[row]]
    method = "bn"
"#;

#[test]
fn slurm_starts_workers() {
    let folder = tempfile::tempdir().unwrap();
    let Some(slurm) = Slurm::start(folder.path()) else {
        return;
    };
    let jetstream = tempfile::tempdir().unwrap();
    let Some(broker) = Broker::start(jetstream.path(), &[]) else {
        return;
    };
    let world = World::new();
    world.write("grid.toml", SIX);
    let queue = broker.address();
    assert_eq!(world.submit(&queue)["submitted"], 6);
    let mut sbatch = slurm.command("sbatch");
    sbatch.args(["--array=1-2", "--cpus-per-task=1", "--parsable"]);
    sbatch.arg(configs().join("slurm-workers.sh"));
    sbatch.current_dir(world.path("."));
    sbatch.env("TTAC", env!("CARGO_BIN_EXE_ttac"));
    sbatch
        .env("TTAC_QUEUE", &queue)
        .env("TTAC_STORE", world.store());
    let output = sbatch.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    wait_for("the array ends", || {
        slurm.said("squeue", &["-h"]).trim().is_empty()
    });
    let logs = || {
        let files = std::fs::read_dir(world.path("."))
            .unwrap()
            .map(|file| file.unwrap().path());
        let logs = files.filter(|file| {
            file.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("slurm-")
        });
        logs.map(|log| std::fs::read_to_string(log).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(world.status(&queue)["done"], 6, "{:?}", logs());
    assert_eq!(logs().len(), 2);
    world.check_table();
}
