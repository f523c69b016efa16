//! TTAC++: what its strongly varied copies change, and what they do not.

use ttac::Session;
use ttac::method::Setting;
use ttac::protocol::Prediction;

use crate::world::{Source, data, eager, plan, predictions, protocol};

fn session(name: &str, changes: &[(&str, &str)], queue: bool) -> Session {
    let source = Source::of(name);
    let protocol = protocol(queue);
    let mut method = eager(name, protocol.setting());
    for (field, value) in changes {
        method = method.with_field(field, value).unwrap();
    }
    Session::builder(&source.model)
        .anchors(&source.anchors)
        .method_spec(&method)
        .protocol(&protocol)
        .build()
        .unwrap()
}

#[test]
fn without_a_confident_image_it_is_anchored_clustering_if_copies_are_apart() {
    let plan = plan(3);
    let with = |pass| {
        let changes = [
            ("strong.confidence_threshold", "1.5"),
            ("strong.pass", pass),
            ("strong.flips", "false"),
        ];
        predictions(&mut session("ttac++", &changes, false), &plan, &data(0))
    };
    let plain = predictions(&mut session("ttac", &[], false), &plan, &data(0));
    assert_eq!(with("apart"), plain);
    // In one batch with the images, the copies change the statistics of all norms.
    assert_ne!(with("joint"), plain);
}

#[test]
fn copies_are_learned_from_with_and_without_a_queue() {
    for queue in [false, true] {
        for pass in ["apart", "joint"] {
            let changes = [("strong.pass", pass), ("strong.flips", "false")];
            let mut session = session("ttac++", &changes, queue);
            let samples = data(0)[0].batch(&[0, 1, 2, 3, 4, 5]).unwrap().samples;
            let answer = session.observe(&samples).unwrap();
            let loss = answer
                .learned
                .losses
                .iter()
                .find(|(name, _)| *name == "strong");
            assert!(
                loss.is_some_and(|(_, value)| *value > 0.0),
                "{queue}, {pass}"
            );
        }
    }
}

#[test]
fn the_joint_pass_asks_for_a_warm_up_over_the_queue() {
    let joint = eager("ttac++", Setting::Queue);
    assert!(joint.needs().unwrap().warm_up);
    let apart = joint.with_field("strong.pass", "apart").unwrap();
    assert!(!apart.needs().unwrap().warm_up);
}

#[test]
fn an_image_alone_is_answered_by_memo_as_among_others() {
    let source = Source::of("memo");
    let all = data(0)[0].batch(&[0, 1, 2]).unwrap();
    let one = data(0)[0].batch(&[2]).unwrap();
    for prediction in [Prediction::AdaptFirst, Prediction::PredictFirst] {
        let make = || {
            let mut protocol = protocol(false);
            protocol.prediction = prediction;
            source.session("memo", &protocol)
        };
        let together = make().observe_known(&all.ids, &all.samples).unwrap();
        let alone = make().observe_known(&one.ids, &one.samples).unwrap();
        let [found, expected] = [&together, &alone].map(ttac::Answer::confidence);
        // A batch of another size is summed in another order by the predict-first pass.
        assert!((found[2] - expected[0]).abs() < 1e-6, "{prediction:?}");
    }
}
