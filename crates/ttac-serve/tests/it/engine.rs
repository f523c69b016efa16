use std::time::{Duration, Instant};

use ttac::backbone::tensors;
use ttac::burn::tensor::Device;
use ttac::data::Samples;
use ttac::{Model, Session, SourceStatistics};
use ttac_serve::api::{Fate, Feedback, Health, Lane, Mode, Refusal, Request, Rollback, Service};
use ttac_serve::config::Config;
use ttac_serve::engine::Engine;

use crate::world::{
    EAGER, NO_GUARDS, SHIPPED, config, images, labelled, mode, request, send, settle, status, until,
};

/// The session that `ttac adapt --predict-first` runs.
fn session(config: &Config) -> Session {
    let shipped = std::path::Path::new(SHIPPED);
    let model = Model::load(&shipped.join("model.safetensors"), &Device::flex()).unwrap();
    let anchors = SourceStatistics::load(&shipped.join("anchors.safetensors")).unwrap();
    let builder = Session::builder(&model).spec(&config.models["shapes"].spec());
    builder.unwrap().anchors(&anchors).build().unwrap()
}

fn model_of(bytes: &[u8]) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    Model::load(&path, &Device::flex()).unwrap()
}

#[test]
fn it_learns_with_the_bits_of_a_session_and_answers_by_the_source() {
    let config = config(EAGER, NO_GUARDS);
    let engine = Engine::start(config.clone()).unwrap();
    let mut reference = session(&config);
    let shifted = images(Some("contrast"), 0..96);
    let source = Session::builder(reference.source())
        .method("test")
        .build()
        .unwrap();
    // Requests of all sizes; the cuts come every 16 images.
    let mut from = 0;
    for size in [1, 7, 16, 40, 32] {
        let places: Vec<usize> = (from..from + size).collect();
        let some = shifted.pick(&places);
        let reply = send(&engine, "s", some.clone());
        assert_eq!((reply.fate, reply.lane), (Fate::Accepted, Lane::Source));
        assert_eq!(reply.classes, source.predict(&some).unwrap().classes);
        assert_eq!(reply.weights_version, 0);
        settle(&engine, "s", 16);
        from += size;
    }
    for cut in 0..6 {
        let places: Vec<usize> = (16 * cut..16 * (cut + 1)).collect();
        reference.observe(&shifted.pick(&places)).unwrap();
    }
    until("the sixth version", || status(&engine, "s").version == 6);
    let found = status(&engine, "s");
    assert_eq!((found.accepted, found.learned), (96, 96));
    assert_eq!(found.health, Health::Healthy);
    let checkpoint = model_of(&engine.checkpoint("shapes", "s", 6).unwrap());
    assert!(
        tensors(&checkpoint.network) == tensors(&reference.model().network),
        "the weights differ from those of a session on the same cuts"
    );
    // Asked for, the adapted weights answer, and an operator can let them answer everybody.
    let some = shifted.pick(&[0, 1, 2]);
    let asked = engine
        .infer(Request {
            lane: Some(Lane::Adapted),
            learn: false,
            ..request("s", some.clone())
        })
        .unwrap();
    assert_eq!((asked.weights_version, asked.fate), (6, Fate::Off));
    mode(&engine, "s", Mode::Active);
    let active = engine
        .infer(Request {
            learn: false,
            source_too: true,
            ..request("s", some.clone())
        })
        .unwrap();
    assert_eq!(active.lane, Lane::Adapted);
    assert_eq!(active.scores, asked.scores);
    assert_eq!(
        active.source_classes.unwrap(),
        source.predict(&some).unwrap().classes
    );
}

#[test]
fn the_recommended_gate_leaves_a_stream_alone_that_is_fine() {
    let engine = Engine::start(config("batch = 16\nmode = 'active'", NO_GUARDS)).unwrap();
    let clean = images(None, 0..96);
    let expected = engine
        .infer(Request {
            lane: Some(Lane::Source),
            learn: false,
            ..request("other", clean.clone())
        })
        .unwrap();
    for start in (0..96).step_by(16) {
        let places: Vec<usize> = (start..start + 16).collect();
        let reply = send(&engine, "s", clean.pick(&places));
        assert_eq!(reply.weights_version, 0);
        assert_eq!(reply.scores, expected.scores[10 * start..10 * (start + 16)]);
    }
    settle(&engine, "s", 16);
    assert_eq!(status(&engine, "s").version, 0);
}

/// Feeds a stream and returns all scores.
fn feed(engine: &Engine, stream: &str, samples: &Samples) -> Vec<f32> {
    let mut scores = Vec::new();
    for start in (0..samples.count()).step_by(16) {
        let places: Vec<usize> = (start..start + 16).collect();
        scores.extend(send(engine, stream, samples.pick(&places)).scores);
        settle(engine, stream, 16);
    }
    scores
}

#[test]
fn two_streams_with_opposite_shifts_are_each_as_if_alone() {
    let keys = format!("{EAGER}mode = 'active'\n");
    let shifts = ["contrast", "brightness"].map(|name| images(Some(name), 0..128));
    let alone = shifts.each_ref().map(|samples| {
        let engine = Engine::start(config(&keys, NO_GUARDS)).unwrap();
        feed(&engine, "alone", samples)
    });
    let engine = Engine::start(config(&keys, NO_GUARDS)).unwrap();
    let together = std::thread::scope(|scope| {
        let (first, second) = (
            scope.spawn(|| feed(&engine, "first", &shifts[0])),
            scope.spawn(|| feed(&engine, "second", &shifts[1])),
        );
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert!(together == alone);
    let source = engine.infer(Request {
        lane: Some(Lane::Source),
        ..request("first", shifts[0].pick(&[120, 121]))
    });
    let answered = &alone[0][1200..1220];
    assert!(
        source.unwrap().scores != answered,
        "it has learned something"
    );
}

#[test]
fn images_of_other_clients_never_change_an_answer() {
    let engine = Engine::start(config(EAGER, NO_GUARDS)).unwrap();
    for start in [0, 16, 32, 48, 64] {
        send(&engine, "s", images(Some("snow"), start..start + 16));
    }
    settle(&engine, "s", 16);
    mode(&engine, "s", Mode::Frozen(None));
    until("a pinned version", || {
        status(&engine, "s").mode != Mode::Frozen(None)
    });
    let some = images(Some("snow"), 200..240);
    let alone: Vec<Vec<f32>> = (0..40)
        .map(|place| send(&engine, "s", some.pick(&[place])).scores)
        .collect();
    // Many at once share passes, in whatever company chance gives them.
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (engine, some, alone) = (&engine, &some, &alone);
            scope.spawn(move || {
                for round in 0..10 {
                    let place = (client * 5 + round) % 40;
                    let reply = engine.infer(Request {
                        client: Some(client.to_string()),
                        ..request("s", some.pick(&[place]))
                    });
                    assert!(reply.unwrap().scores == alone[place]);
                }
            });
        }
    });
    let together = send(&engine, "s", some.clone());
    assert!(together.scores == alone.concat());
    let passes = engine.statistics("shapes", Lane::Adapted).unwrap().passes;
    assert!(passes.keys().any(|&images| images > 1), "{passes:?}");
}

#[test]
fn modes_decide_who_answers_and_whether_anything_is_learned() {
    let engine = Engine::start(config(EAGER, NO_GUARDS)).unwrap();
    for start in [0, 16, 32, 48, 64] {
        send(&engine, "s", images(Some("contrast"), start..start + 16));
        settle(&engine, "s", 16);
    }
    let ask = |id: &str| {
        let one = images(Some("contrast"), 500..501);
        engine
            .infer(Request {
                id: Some(id.to_owned()),
                learn: false,
                ..request("s", one)
            })
            .unwrap()
    };
    assert_eq!(
        (ask("a").lane, ask("a").health),
        (Lane::Source, Health::Healthy)
    );
    mode(&engine, "s", Mode::Canary(0.3));
    let lanes: Vec<Lane> = (0..100).map(|id| ask(&id.to_string()).lane).collect();
    let adapted = lanes.iter().filter(|&&lane| lane == Lane::Adapted).count();
    assert!((10..=55).contains(&adapted), "{adapted} of 100");
    let again: Vec<Lane> = (0..100).map(|id| ask(&id.to_string()).lane).collect();
    assert_eq!(lanes, again, "the same request, the same lane");
    mode(&engine, "s", Mode::Frozen(None));
    until("a pinned version", || {
        status(&engine, "s").mode == Mode::Frozen(Some(5))
    });
    let more = send(&engine, "s", images(Some("contrast"), 600..632));
    assert_eq!((more.fate, more.weights_version), (Fate::Off, 5));
    mode(&engine, "s", Mode::Off);
    let off = send(&engine, "s", images(Some("contrast"), 600..632));
    assert_eq!((off.fate, off.lane), (Fate::Off, Lane::Source));
    assert_eq!(status(&engine, "s").learned, 80);
    let wrong = engine.set_mode("shapes", "s", Mode::Canary(2.0), "test");
    assert!(matches!(wrong, Err(Refusal::Invalid(_))));
    let unknown = engine.set_mode("shapes", "s", Mode::Frozen(Some(99)), "test");
    assert!(matches!(unknown, Err(Refusal::NotFound(_))));
}

#[test]
fn an_operator_rolls_back_and_it_cools() {
    let engine = Engine::start(config(&format!("{EAGER}mode = 'active'\n"), NO_GUARDS)).unwrap();
    for start in (0..192).step_by(16) {
        send(&engine, "s", images(Some("contrast"), start..start + 16));
        settle(&engine, "s", 16);
    }
    let before = status(&engine, "s");
    assert_eq!(before.version, 12);
    let good = before
        .kept
        .iter()
        .filter(|kept| kept.2)
        .map(|kept| kept.0)
        .max();
    engine
        .roll_back("shapes", "s", Rollback::Good, "operator", "a test")
        .unwrap();
    let after = status(&engine, "s");
    assert_eq!((Some(after.version), after.health), (good, Health::Cooling));
    let cooling = send(&engine, "s", images(Some("contrast"), 300..316));
    assert_eq!(
        (cooling.fate, Some(cooling.weights_version)),
        (Fate::Off, good)
    );
    send(&engine, "s", images(Some("contrast"), 316..332));
    until("the end of cooling", || {
        status(&engine, "s").health == Health::Warming
    });
    let warming = send(&engine, "s", images(Some("contrast"), 332..348));
    assert_eq!((warming.fate, warming.lane), (Fate::Accepted, Lane::Source));
    settle(&engine, "s", 16);
    assert_eq!(
        status(&engine, "s").version,
        13,
        "numbers are never given twice"
    );
    engine
        .roll_back("shapes", "s", Rollback::Source, "operator", "a test")
        .unwrap();
    assert_eq!(status(&engine, "s").version, 0);
    let unknown = engine.roll_back("shapes", "s", Rollback::Version(12), "operator", "a test");
    let Err(Refusal::NotFound(text)) = unknown else {
        panic!("expected a refusal, found {unknown:?}");
    };
    assert!(text.contains("version 12 is not kept"), "{text}");
    let events = engine.events("shapes", "s", None, Duration::ZERO).unwrap();
    assert!(
        events
            .iter()
            .any(|event| event.data.contains("operator: a test"))
    );
}

#[test]
fn guards_roll_back_what_runs_away_and_three_times_end_in_shadow() {
    let keys = format!(
        "{EAGER}mode = 'active'\nset = {{ learning_rate = 10.0, gradient_bound = 10.0 }}\n"
    );
    let sections = "[guards]\nwindow = 64\nwarming = 64\ncooling = 16\n";
    let engine = Engine::start(config(&keys, sections)).unwrap();
    for start in (0..1600).step_by(16) {
        send(&engine, "s", images(Some("contrast"), start..start + 16));
        settle(&engine, "s", 16);
        if status(&engine, "s").mode == Mode::Shadow {
            break;
        }
    }
    let found = status(&engine, "s");
    assert_eq!(found.mode, Mode::Shadow, "{found:?}");
    let events = engine.events("shapes", "s", None, Duration::ZERO).unwrap();
    let alarms = events.iter().filter(|event| event.kind == "alarm").count();
    assert_eq!(alarms, 4, "three guards, and that they are too many");
    let counted = status(&engine, "s");
    let by_guard = counted.alarms.iter().map(|(_, count)| count);
    assert_eq!((by_guard.sum::<u64>(), counted.rollbacks), (4, 3));
}

#[test]
fn late_labels_promote_what_is_better() {
    let keys = format!("{EAGER}promote = 'labels'\n");
    let sections = format!("{NO_GUARDS}[learn]\ncompare_share = 1.0\n");
    let engine = Engine::start(config(&keys, &sections)).unwrap();
    let (shifted, classes) = labelled(Some("contrast"), 0..640);
    let mut matched = 0;
    for start in (0..640).step_by(16) {
        let places: Vec<usize> = (start..start + 16).collect();
        let id = start.to_string();
        engine
            .infer(Request {
                id: Some(id.clone()),
                ..request("s", shifted.pick(&places))
            })
            .unwrap();
        settle(&engine, "s", 16);
        // The comparison is made after the learn batch.
        std::thread::sleep(Duration::from_millis(20));
        let labels: Vec<Feedback> = (0..16)
            .map(|index| Feedback {
                id: id.clone(),
                index,
                class: classes[start + index],
            })
            .collect();
        matched += engine.feedback("shapes", "s", &labels).unwrap().0;
        if status(&engine, "s").mode == Mode::Active {
            break;
        }
    }
    assert!(matched > 0);
    assert_eq!(status(&engine, "s").mode, Mode::Active);
    let unknown = Feedback {
        id: "never".to_owned(),
        index: 0,
        class: 1,
    };
    assert_eq!(
        engine
            .feedback("shapes", "s", std::slice::from_ref(&unknown))
            .unwrap(),
        (0, 1)
    );
    let wrong = Feedback {
        class: 10,
        ..unknown
    };
    let refused = engine.feedback("shapes", "s", &[wrong]);
    assert!(matches!(refused, Err(Refusal::Invalid(_))));
}

#[test]
fn a_slow_stream_is_learned_from_after_a_while() {
    let sections = format!("{NO_GUARDS}[learn]\nflush_after = '20ms'\n");
    let keys = EAGER.replace("16", "64");
    let engine = Engine::start(config(&keys, &sections)).unwrap();
    send(&engine, "s", images(Some("contrast"), 0..20));
    until("a smaller batch", || status(&engine, "s").learned == 20);
    send(&engine, "s", images(Some("contrast"), 20..30));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(status(&engine, "s").learned, 20, "ten are too few");
}

#[test]
fn what_comes_again_is_answered_and_not_learned() {
    let engine = Engine::start(config(EAGER, NO_GUARDS)).unwrap();
    let some = images(None, 0..8);
    let first = send(&engine, "s", some.clone());
    let again = send(&engine, "s", some);
    assert_eq!(first.fate, Fate::Accepted);
    assert_eq!((again.fate, again.sequence), (Fate::SkippedDuplicate, None));
    assert_eq!(first.scores, again.scores);
    assert_eq!(status(&engine, "s").accepted, 8);
}

#[test]
fn what_cannot_be_answered_is_refused_with_a_reason() {
    let engine = Engine::start(config(EAGER, NO_GUARDS)).unwrap();
    let refused = |request: Request| engine.infer(request).unwrap_err();
    let one = || images(None, 0..1);
    let unknown = refused(Request {
        model: "shape".to_owned(),
        ..request("s", one())
    });
    assert!(matches!(unknown, Refusal::NotFound(text) if text.contains("`shapes`")));
    for name in ["", "a\nb", &"x".repeat(129)] {
        assert!(matches!(refused(request(name, one())), Refusal::Invalid(_)));
    }
    let Samples::Images(mut small) = one() else {
        panic!("shapes are images");
    };
    small.height = 16;
    assert!(matches!(
        refused(request("s", small.into())),
        Refusal::Invalid(text) if text.contains("32 x 32")
    ));
    let many = images(None, 0..257);
    assert!(matches!(refused(request("s", many)), Refusal::Invalid(text) if text.contains("256")));
    let late = refused(Request {
        deadline: Some(Instant::now()),
        ..request("s", one())
    });
    assert_eq!(late, Refusal::Deadline);
    let absent = refused(Request {
        at: Some(7),
        ..request("s", one())
    });
    assert!(matches!(absent, Refusal::NotFound(text) if text.contains("version 7")));
    assert!(matches!(
        engine.snapshot("shapes", "nobody"),
        Err(Refusal::NotFound(_))
    ));
    engine.stop();
    assert!(!engine.ready());
    assert!(matches!(
        refused(request("s", one())),
        Refusal::Unavailable(_)
    ));
}

#[test]
fn methods_that_answer_by_the_batch_are_refused_at_the_start() {
    for keys in [
        "method = 'tent'\npreset = 'released'",
        "method = 'lame'",
        "method = 't3a'",
        "shares = 'lame'",
    ] {
        let error = config(keys, "").read_models().map(|_| ()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("by the rest of its batch"), "{keys}: {text}");
    }
    let missing = Config::parse("[model.a]\nfile = 'nothing'\n", "/nowhere".as_ref());
    let error = missing.unwrap().check().unwrap_err().to_string();
    assert!(error.contains("[model.a] cannot read"), "{error}");
    let checked = config("", "").check().unwrap();
    assert_eq!(
        (checked[0].classes, checked[0].method.as_str()),
        (10, "ttac")
    );
    assert!(checked[0].stream_bytes > 1_000_000);
}

#[test]
fn without_memory_for_a_stream_the_source_answers() {
    let sections = format!("{NO_GUARDS}[state]\nmemory = '1kB'\n");
    let engine = Engine::start(config(EAGER, &sections)).unwrap();
    let reply = send(&engine, "s", images(None, 0..2));
    assert_eq!((reply.fate, reply.lane), (Fate::Off, Lane::Source));
    assert!(engine.streams("shapes").unwrap().is_empty());
}
