use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ttac::backbone::tensors;
use ttac::burn::tensor::Device;
use ttac::{Model, Session, SourceStatistics};
use ttac_serve::api::{Health, Service};
use ttac_serve::config::Config;
use ttac_serve::engine::{Engine, replay};
use ttac_serve::state::{list, verify};

use crate::world::{EAGER, NO_GUARDS, SHIPPED, images, send, status, stored, until};

/// Where the child finds its state.
const FOLDER: &str = "TTAC_SERVE_CRASH_FOLDER";

/// How often the child is killed; more where somebody has the time.
const ROUNDS: &str = "TTAC_SERVE_CRASH_ROUNDS";

/// Snapshots come often, so that some are being written when the end comes.
fn served(folder: &Path) -> Config {
    let sections = format!(
        "{NO_GUARDS}[state]\nsnapshot_batches = 3\nsnapshot_every = '1h'\n[learn]\nbacklog = 100\n"
    );
    stored(EAGER, &sections, folder)
}

/// The child: goes on with a stream where it ended, and says what was accepted.
#[test]
#[ignore = "the program that `a_service_that_is_killed_anywhere_goes_on` kills"]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let engine = Engine::start(served(Path::new(&folder))).unwrap();
    let all = images(Some("contrast"), 0..2048);
    let accepted = || {
        let streams = engine.streams("shapes").unwrap();
        streams.first().map_or(0, |stream| stream.accepted)
    };
    for from in accepted()..2048 {
        let reply = send(&engine, "s", all.pick(&[from as usize]));
        if reply.sequence.is_some() {
            let mut out = std::io::stdout().lock();
            writeln!(out, "accepted {}", from + 1).unwrap();
        }
        // Learning keeps up with what arrives.
        until("room", || status(&engine, "s").pending < 64);
    }
}

/// The digests of a session's weights after each learn batch of 16 images.
struct Reference {
    session: Session,
    digests: Vec<String>,
}

impl Reference {
    fn new(folder: &Path) -> Self {
        let shipped = Path::new(SHIPPED);
        let model = Model::load(&shipped.join("model.safetensors"), &Device::flex()).unwrap();
        let anchors = SourceStatistics::load(&shipped.join("anchors.safetensors")).unwrap();
        let builder = Session::builder(&model).spec(&served(folder).models["shapes"].spec());
        let session = builder.unwrap().anchors(&anchors).build().unwrap();
        Self {
            digests: vec![digest(session.source())],
            session,
        }
    }

    fn after(&mut self, cuts: usize) -> &str {
        while self.digests.len() <= cuts {
            let from = 16 * (self.digests.len() as u64 - 1);
            self.session
                .observe(&images(Some("contrast"), from..from + 16))
                .unwrap();
            self.digests.push(digest(&self.session.model()));
        }
        &self.digests[cuts]
    }
}

fn digest(model: &Model) -> String {
    let mut hasher = blake3::Hasher::new();
    for (key, data) in tensors(&model.network) {
        hasher.update(key.as_bytes());
        hasher.update(data.as_bytes());
    }
    format!("b3:{}", &hasher.finalize().to_hex()[..16])
}

#[test]
fn a_service_that_is_killed_anywhere_goes_on_with_the_same_bits() {
    let rounds = std::env::var(ROUNDS).map_or(20, |text| text.parse::<u64>().unwrap());
    let mut folder = tempfile::tempdir().unwrap();
    let mut reference = Reference::new(folder.path());
    let mut chance = 0x2545_f491_u64;
    let mut known = 0;
    for round in 0..rounds {
        if known > 1500 {
            // The pictures are used up.
            folder = tempfile::tempdir().unwrap();
            known = 0;
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "crash::child", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // It dies after some answers, a little after one of them.
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        let (answers, pause) = (1 + chance % 50, Duration::from_micros(chance % 20_011));
        let mut told = known;
        let mut heard = 0;
        for line in lines.map_while(Result::ok) {
            if let Some(number) = line.strip_prefix("accepted ") {
                told = number.parse().unwrap();
                heard += 1;
                if heard == answers {
                    std::thread::sleep(pause);
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        assert!(
            heard >= answers,
            "round {round}: the child ended after {heard} answers"
        );
        let stored = list(folder.path()).unwrap().remove(0);
        assert_eq!(verify(&stored).unwrap(), [""; 0], "round {round}");
        let found = replay(&served(folder.path()), &stored.folder)
            .unwrap()
            .unwrap();
        assert_eq!(found.damage, None, "round {round}");
        let cuts = found.learned / 16;
        assert!(
            found.accepted >= told,
            "round {round}: {told} were accepted, and {} are there",
            found.accepted
        );
        assert_eq!(
            (found.learned, cuts),
            (found.accepted / 16 * 16, found.version)
        );
        assert_eq!(
            found.weights,
            reference.after(cuts as usize),
            "round {round}: other weights after {cuts} learn batches"
        );
        known = found.accepted;
    }
    // It starts, and it has caught up.
    let engine = Engine::start(served(folder.path())).unwrap();
    until("the replay", || {
        status(&engine, "s").health != Health::CatchingUp
    });
    assert_eq!(status(&engine, "s").accepted, known);
}
