use std::path::Path;
use std::time::Duration;

use ttac_serve::api::{Fate, Health, Lane, Mode, Refusal, Rollback, Service};
use ttac_serve::engine::{Engine, replay};
use ttac_serve::state::{Stored, list, verify};

use crate::world::{
    EAGER, NO_GUARDS, config, images, mode, request, send, settle, status, stored, until,
};

/// Snapshots only where a test asks for them.
const RARELY: &str = "[state]\nsnapshot_every = '1h'\n";

fn start(folder: &Path) -> Engine {
    let sections = format!("{NO_GUARDS}{RARELY}");
    Engine::start(stored(EAGER, &sections, folder)).unwrap()
}

/// Sends images `from` to `to` of a shifted stream and waits for the learner.
fn feed(engine: &Engine, from: u64, to: u64) {
    send(engine, "s", images(Some("contrast"), from..to));
    settle(engine, "s", 16);
}

/// The digest of the published weights.
fn weights(engine: &Engine) -> (u64, String) {
    let asked = ttac_serve::api::Request {
        lane: Some(Lane::Adapted),
        learn: false,
        ..request("s", images(None, 0..1))
    };
    let reply = engine.infer(asked).unwrap();
    (reply.weights_version, reply.weights)
}

/// What an engine that never stopped comes to after so many images.
fn expected(to: u64) -> (u64, String) {
    let engine = Engine::start(config(EAGER, NO_GUARDS)).unwrap();
    for from in (0..to).step_by(8) {
        feed(&engine, from, (from + 8).min(to));
    }
    weights(&engine)
}

fn the_one(folder: &Path) -> Stored {
    let mut all = list(folder).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn log_file(folder: &Path) -> std::path::PathBuf {
    the_one(folder).log.segments[0].path.clone()
}

#[test]
fn a_restart_goes_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let engine = start(folder);
    feed(&engine, 0, 40);
    mode(&engine, "s", Mode::Active);
    drop(engine);
    // It was saved in the middle of a learn batch.
    let kept = the_one(folder);
    assert_eq!((kept.left(), kept.log_bytes()), (0, 0));
    assert_eq!(verify(&kept).unwrap(), [""; 0]);
    let engine = start(folder);
    assert_eq!(status(&engine, "s").mode, Mode::Active);
    assert_eq!(status(&engine, "s").accepted, 40);
    feed(&engine, 40, 88);
    assert_eq!(weights(&engine), expected(88));
    // What came since is in the log alone, as after a crash.
    let unsaved = replay(&stored(EAGER, NO_GUARDS, folder), &the_one(folder).folder);
    let replayed = unsaved.unwrap().unwrap();
    let same = (replayed.version, replayed.weights.clone());
    assert_eq!((same, replayed.learned), (expected(88), 80));
    assert!(!replayed.checkpoint.is_empty());
}

#[test]
fn a_snapshot_takes_the_place_of_the_log_and_kept_versions_survive() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let engine = start(folder);
    for from in (0..192).step_by(16) {
        feed(&engine, from, from + 16);
    }
    let before = status(&engine, "s");
    assert!(before.log_bytes > 192 * 3 * 32 * 32);
    engine.snapshot("shapes", "s").unwrap();
    until("a snapshot", || status(&engine, "s").log_bytes == 0);
    drop(engine);
    let engine = start(folder);
    let after = status(&engine, "s");
    assert_eq!(
        (after.kept, after.version),
        (before.kept.clone(), before.version)
    );
    let good = before.kept.iter().find(|kept| kept.2).unwrap().0;
    engine
        .roll_back(
            "shapes",
            "s",
            Rollback::Version(good),
            "operator",
            "why not",
        )
        .unwrap();
    assert_eq!(status(&engine, "s").version, good);
    drop(engine);
    let trail = the_one(folder).folder.trail().unwrap();
    let rollbacks = trail.iter().filter(|entry| entry["kind"] == "rollback");
    let rollbacks: Vec<_> = rollbacks.collect();
    assert_eq!(rollbacks.len(), 1, "{trail:?}");
    assert_eq!(
        (&rollbacks[0]["by"], &rollbacks[0]["reason"]),
        (&"operator".into(), &"why not".into())
    );
    let engine = start(folder);
    assert_eq!(
        status(&engine, "s").version,
        good,
        "and it stays rolled back"
    );
    assert_eq!(status(&engine, "s").health, Health::Cooling);
    drop(engine);
    let again = the_one(folder).folder.trail().unwrap();
    assert_eq!(trail, again, "a start decides nothing anew");
}

#[test]
fn a_state_folder_has_one_owner_and_one_network() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let engine = start(folder);
    feed(&engine, 0, 16);
    let refused = |keys: &str| match Engine::start(stored(keys, NO_GUARDS, folder)) {
        Ok(_) => panic!("expected a refusal"),
        Err(error) => format!("{error}; {}", error.hint().unwrap_or_default()),
    };
    let busy = refused(EAGER);
    assert!(busy.contains("in use by another process"), "{busy}");
    assert!(busy.contains("`folder` in `[state]`"), "{busy}");
    drop(engine);
    let other = refused("method = 'shot'\nbatch = 16\n");
    assert!(
        other.contains("another method, protocol or batch"),
        "{other}"
    );
    let mut renamed = stored(EAGER, NO_GUARDS, folder);
    let model = renamed.models.remove("shapes").unwrap();
    renamed.models.insert("forms".to_owned(), model);
    let Err(error) = Engine::start(renamed) else {
        panic!("expected a refusal");
    };
    let text = error.to_string();
    assert!(
        text.contains("expected one of `forms`, found `shapes`"),
        "{text}"
    );
    start(folder);
}

#[test]
fn a_damaged_log_fails_until_an_operator_rolls_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let engine = start(folder);
    feed(&engine, 0, 40);
    // The process dies here, as far as the files know.
    let copy = tempfile::tempdir().unwrap();
    let log = log_file(folder);
    let bytes = std::fs::read(&log).unwrap();
    drop(engine);
    let stream = the_one(folder).folder;
    for snapshot in stream.snapshots().unwrap() {
        std::fs::remove_file(snapshot.path).unwrap();
    }
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    std::fs::write(&log, &flipped).unwrap();
    std::fs::write(copy.path().join("1.log"), &bytes).unwrap();
    let problems = verify(&the_one(folder)).unwrap().join("\n");
    assert!(problems.contains("is damaged at byte"), "{problems}");

    let engine = start(folder);
    until("the end of the replay", || {
        status(&engine, "s").health == Health::Failed
    });
    let reply = send(&engine, "s", images(None, 0..1));
    assert_eq!((reply.fate, reply.lane), (Fate::Off, Lane::Source));
    let refused = engine.set_mode("shapes", "s", Mode::Active, "test");
    assert!(matches!(refused, Err(Refusal::Unavailable(text)) if text.contains("damaged")));
    engine
        .roll_back(
            "shapes",
            "s",
            Rollback::Source,
            "operator",
            "the log is damaged",
        )
        .unwrap();
    assert_eq!(status(&engine, "s").health, Health::Cooling);
    send(&engine, "s", images(None, 100..132));
    until("the end of cooling", || {
        status(&engine, "s").health == Health::Warming
    });
    let accepted = send(&engine, "s", images(Some("contrast"), 200..216));
    assert_eq!(accepted.fate, Fate::Accepted);
    settle(&engine, "s", 16);
    let now = weights(&engine);
    drop(engine);
    // The damaged log is put aside, and the new one is whole.
    assert!(stream.path().join("log-damaged-1").exists());
    let engine = start(folder);
    until("the replay", || {
        status(&engine, "s").health == Health::Warming
    });
    assert_eq!(weights(&engine), now);
}

#[test]
fn a_log_that_ends_anywhere_goes_on_from_there() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let engine = start(folder);
    feed(&engine, 0, 40);
    let log = log_file(folder);
    let bytes = std::fs::read(&log).unwrap();
    drop(engine);
    let stream = the_one(folder).folder;
    for part in [1, 3, 5, 7] {
        for snapshot in stream.snapshots().unwrap() {
            std::fs::remove_file(snapshot.path).unwrap();
        }
        for segment in the_one(folder).log.segments {
            std::fs::remove_file(segment.path).unwrap();
        }
        std::fs::write(&log, &bytes[..bytes.len() * part / 8 + part]).unwrap();
        let engine = start(folder);
        until("the replay", || {
            status(&engine, "s").health != Health::CatchingUp
        });
        let accepted = status(&engine, "s").accepted;
        assert!(accepted < 40);
        feed(&engine, accepted, 48);
        until("three cuts", || status(&engine, "s").learned == 48);
        assert_eq!(weights(&engine), expected(48), "cut after {part} eighths");
    }
}

#[test]
fn a_damaged_snapshot_is_passed_over_with_an_alarm() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let engine = start(folder);
    feed(&engine, 0, 16);
    drop(engine);
    let engine = start(folder);
    feed(&engine, 16, 32);
    drop(engine);
    let snapshots = the_one(folder).snapshots;
    assert!(snapshots.len() >= 2);
    let mut bytes = std::fs::read(&snapshots[0].path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&snapshots[0].path, bytes).unwrap();
    assert!(verify(&the_one(folder)).unwrap()[0].contains("digest"));
    let engine = start(folder);
    assert_eq!(status(&engine, "s").version, 1);
    let events = engine.events("shapes", "s", None, Duration::ZERO).unwrap();
    assert!(events[0].kind == "alarm" && events[0].data.contains("digest"));
    feed(&engine, 32, 48);
    assert_eq!(status(&engine, "s").learned, 32);
}

#[test]
fn without_durability_no_image_is_on_disk_and_a_crash_says_what_it_forgot() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let sections = format!("{NO_GUARDS}{RARELY}durability = 'none'\n");
    let engine = Engine::start(stored(EAGER, &sections, folder)).unwrap();
    feed(&engine, 0, 40);
    assert_eq!(status(&engine, "s").learned, 32);
    assert!(
        status(&engine, "s").log_bytes < 3 * 32 * 32,
        "no image fits into that"
    );
    // What a crash would leave behind.
    let files = replay(&stored(EAGER, &sections, folder), &the_one(folder).folder);
    let replayed = files.unwrap().unwrap();
    assert_eq!((replayed.learned, replayed.version), (0, 0));
    assert_eq!(replayed.forgotten, 32);
    drop(engine);
    let engine = Engine::start(stored(EAGER, &sections, folder)).unwrap();
    assert_eq!(status(&engine, "s").learned, 32, "but a snapshot has it");
}

#[test]
fn a_deleted_stream_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let engine = start(folder);
    feed(&engine, 0, 16);
    let path = the_one(folder).folder.path().to_owned();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&log_file(folder)), 0o600);
        engine.snapshot("shapes", "s").unwrap();
        until("a snapshot", || status(&engine, "s").log_bytes == 0);
        assert_eq!(mode(&the_one(folder).snapshots[0].path), 0o600);
    }
    engine.delete("shapes", "s", "operator").unwrap();
    assert!(!path.exists());
    assert!(matches!(
        engine.delete("shapes", "s", "operator"),
        Err(Refusal::NotFound(_))
    ));
    feed(&engine, 0, 16);
    assert_eq!(
        status(&engine, "s").accepted,
        16,
        "the next one begins anew"
    );
}

#[test]
fn power_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let sections = format!("{NO_GUARDS}{RARELY}durability = 'power'\n");
    let engine = Engine::start(stored(EAGER, &sections, folder)).unwrap();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let engine = &engine;
            scope.spawn(move || {
                for image in 0..8 {
                    let id = 100 * client + image;
                    let reply = send(engine, "s", images(None, id..id + 1));
                    assert_eq!(reply.fate, Fate::Accepted);
                }
            });
        }
    });
    assert_eq!(status(&engine, "s").accepted, 32);
}
