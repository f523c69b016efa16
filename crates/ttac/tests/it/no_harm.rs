//! Re-based norms, statistics by class, and the gate.

use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use ttac::backbone::{
    Adaptable, Architecture, Backbone, InputForm, Network, NormMode, load_tensors, tensors,
};
use ttac::data::{Dataset, DatasetExt, OpenOptions, Samples, Shapes10, Split, open};
use ttac::gate::{Calibration, CalibrationImages, GateConfig};
use ttac::method::{Learner, LearnerConfig, Preset};
use ttac::norms::{Following, NormFollow, NormReference, ReferenceCollector};
use ttac::optim::OptimiserConfig;
use ttac::shares::SharesConfig;
use ttac::{Model, Session, SourceStatistics};

use crate::world::{BATCH, Source, protocol};

/// Numbers between -1 and 1 that look random.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn values(tensor: &Tensor<2>) -> Vec<f32> {
    tensor.to_data().try_to_vec().unwrap()
}

/// Takes the reference moments of random images.
fn reference<B: Backbone>(network: &B, images: &Tensor<4>, classes: &[usize]) -> NormReference {
    let mut collector = ReferenceCollector::new(network);
    let _ = network.features(images.clone(), NormMode::Ruled(collector.rule()));
    collector.add(classes);
    collector.finish()
}

/// Networks of every family with batch norms, small ones, whose running statistics are not those of the images.
fn families() -> Vec<(&'static str, Architecture)> {
    let small: [(&str, &[(&str, &str)]); 5] = [
        ("resnet20-cifar", &[("depth", "8"), ("width", "4")]),
        (
            "resnet26",
            &[("depth", "8"), ("width", "8"), ("norm", "batch")],
        ),
        ("wrn-40-2", &[("depth", "10"), ("widen", "1")]),
        ("resnet18", &[]),
        ("dgcnn", &[("width", "4"), ("embedding", "16"), ("k", "4")]),
    ];
    let build = |(name, fields): (&'static str, &[(&str, &str)])| {
        let mut architecture = Architecture::by_name(name, 5).unwrap();
        for (field, value) in fields {
            // Families name their sizes differently; those without the field keep their own.
            architecture = architecture
                .with_field(field, value)
                .unwrap_or(architecture);
        }
        (name, architecture)
    };
    small.map(build).into()
}

/// A network with statistics that a trained one could have, and six random images for it.
fn network_and_images(architecture: &Architecture) -> (Network, Tensor<4>) {
    let device = Device::flex();
    let shape = match architecture.input() {
        InputForm::Clouds { .. } => [6, 24, 1, 3],
        InputForm::Images { .. } => [6, 32, 32, 3],
    };
    let network = architecture.init(3, &device).unwrap();
    let mut moved = tensors(&network);
    for (number, (key, data)) in moved.iter_mut().enumerate() {
        let noise = noise(data.shape().num_elements(), number as u64 + 1);
        let shape = data.shape().clone();
        if key.ends_with("running_var") {
            let variances = noise.iter().map(|v| 1.0 + 0.5 * v).collect();
            *data = TensorData::new::<f32, _>(variances, shape);
        } else if key.ends_with("running_mean") {
            let means = noise.iter().map(|v| 0.2 * v).collect();
            *data = TensorData::new::<f32, _>(means, shape);
        }
    }
    let network = load_tensors(network, &moved);
    assert!(network.has_batch_norm());
    let images = TensorData::new(noise(shape.iter().product(), 7), shape);
    (network, Tensor::from_data(images, &device))
}

/// Makes one step down a loss of the features, and returns the scores before it and the parameters behind it.
fn step(network: &Network, images: &Tensor<4>, mode: NormMode) -> (Vec<f32>, Vec<f32>) {
    let network = network.clone().trainable(Adaptable::Features);
    let features = network.features(Tensor::from_inner(images.clone()), mode);
    let scores = values(&network.logits(features.clone()).without_autodiff());
    let [rows, size] = features.dims();
    let weights = TensorData::new(noise(rows * size, 11), [rows, size]);
    let weights = Tensor::from_data(weights, &features.device());
    let loss = (features * weights).sum();
    let moved = OptimiserConfig::SGD.init().step(0.1, network, &loss);
    let moved = tensors(&moved.valid()).into_iter();
    let parameters = moved.filter(|(key, _)| !key.contains("running_"));
    let moved = parameters.flat_map(|(_, data)| data.try_to_vec::<f32>().unwrap());
    (scores, moved.collect())
}

#[test]
fn gradients_of_the_batch_are_those_of_its_statistics() {
    for (name, architecture) in families() {
        let (network, images) = network_and_images(&architecture);
        let reference = reference(&network, &images, &[0, 1, 2, 3, 4, 0]);
        // A source that counts for nothing leaves the statistics of the batch alone.
        let follow = |prior, gradients| {
            let following =
                Following::new(&network, &reference, NormFollow::Images, (prior, 1e9), None);
            let mut following = following.with_batch_gradients(gradients);
            following.begin(vec![0; 6]);
            following
        };
        let by_batch = step(&network, &images, NormMode::Batch);
        let ruled = follow(1e-9, true);
        let by_rule = step(&network, &images, NormMode::Ruled(&ruled));
        let near = |found: &[f32], expected: &[f32], what: &str| {
            let largest = expected.iter().fold(1.0_f32, |a, b| a.max(b.abs()));
            for (found, expected) in found.iter().zip(expected) {
                // The moments go through single precision once more on their way, and a few layers amplify that.
                assert!(
                    (found - expected).abs() <= 2e-4 * largest,
                    "{name}, {what}: {found} instead of {expected}"
                );
            }
        };
        near(&by_rule.0, &by_batch.0, "scores");
        near(&by_rule.1, &by_batch.1, "parameters");
        // Followed statistics normalise in either case; only gradients differ.
        let [constant, through] = [false, true].map(|gradients| {
            let ruled = follow(6.0, gradients);
            step(&network, &images, NormMode::Ruled(&ruled))
        });
        near(&through.0, &constant.0, "followed scores");
        assert_ne!(through.1, constant.1, "{name}");
    }
}

#[test]
fn scores_in_learning_are_those_of_the_statistics_that_are_stored_afterwards() {
    for (name, architecture) in families() {
        let (network, images) = network_and_images(&architecture);
        let reference = reference(&network, &images, &[0, 1, 2, 3, 4, 0]);
        let other = Tensor::from_data(
            TensorData::new(noise(images.shape().num_elements(), 5), images.shape()),
            &images.device(),
        );
        for gradients in [false, true] {
            let following =
                Following::new(&network, &reference, NormFollow::Auto, (6.0, 1e9), None);
            let mut following = following.with_batch_gradients(gradients);
            following.begin(vec![0, 1, 2, 3, 4, 0]);
            let student = network.clone().trainable(Adaptable::Features);
            let mode = NormMode::Ruled(&following);
            let features = student.features(Tensor::from_inner(other.clone()), mode);
            let learning = values(&student.logits(features).without_autodiff());
            let stored = values(&student.valid().forward(other.clone(), NormMode::Running));
            let largest = stored.iter().fold(1.0_f32, |a, b| a.max(b.abs()));
            for (learning, stored) in learning.iter().zip(&stored) {
                // Scale and shift are put together in another order, and a few layers amplify the rounding.
                assert!(
                    (learning - stored).abs() <= 2e-4 * largest,
                    "{name}: {learning} instead of {stored}"
                );
            }
        }
    }
}

#[test]
fn re_basing_leaves_what_a_network_computes() {
    for (name, architecture) in families() {
        let (network, images) = network_and_images(&architecture);
        let reference = reference(&network, &images, &[0, 1, 2, 3, 4, 0]);
        assert!(!reference.layers.is_empty(), "{name}");
        let before = values(&network.forward(images.clone(), NormMode::Running));
        let rebased = reference.rebase(network.clone()).unwrap();
        let after = values(&rebased.forward(images.clone(), NormMode::Running));
        let largest = before.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
        for (before, after) in before.iter().zip(&after) {
            // Every scale and shift is rounded once more than before, and up to twenty layers pass that on.
            assert!(
                (before - after).abs() <= 2e-5 * largest.max(1.0),
                "{name}: {before} became {after}"
            );
        }
        // What the norms have stored is what the images bring, so nothing is left to move by.
        for offset in reference.offsets(&rebased) {
            assert!(offset.mean_offset < 1e-5, "{name}: {offset:?}");
            assert!(offset.log_variance_ratio.abs() < 1e-5, "{name}: {offset:?}");
        }
        // A re-based network gives the same with the statistics of the very images it was re-based on.
        let following = {
            let mut following =
                Following::new(&rebased, &reference, NormFollow::Auto, (1e6, 1e9), None);
            following.begin(vec![0, 1, 2, 3, 4, 0]);
            following
        };
        let followed = rebased.forward(images, NormMode::Ruled(&following));
        for (before, after) in before.iter().zip(values(&followed)) {
            // With a source that counts like a million images, six of them move nothing to speak of.
            assert!((before - after).abs() <= 1e-4 * largest.max(1.0), "{name}");
        }
    }
}

/// A calibration by which the source of the tests fits its own images, or by which nothing fits.
fn calibrated(source: &Source, fits: bool) -> SourceStatistics {
    let data = Shapes10::new(Split::Train, 300, 5);
    let ids: Vec<u64> = (0..300).collect();
    let batch = data.batch(&ids).unwrap();
    let images = source
        .model
        .input
        .normalise(&batch.samples, &Device::flex())
        .unwrap();
    let scores = source.model.network.forward(images, NormMode::Running);
    let mut logits = values(&scores);
    if !fits {
        // The energy of the stream is then above that of every calibration image.
        for logit in &mut logits {
            *logit += 50.0;
        }
    }
    let labels = batch.labels.unwrap();
    let found = Calibration::new(CalibrationImages::HeldOut, &logits, 10, Some(&labels));
    SourceStatistics {
        calibration: Some(found.unwrap()),
        ..source.anchors.clone()
    }
}

fn session(source: &Source, anchors: &SourceStatistics) -> Session {
    Session::builder(&source.model)
        .anchors(anchors)
        .protocol(&protocol(false))
        .preset("ttac", Preset::Recommended)
        .set("filter.posterior_threshold", 0.0)
        .set("gate.visits", 1.0)
        .build()
        .unwrap()
}

fn batch(number: u64) -> Samples {
    let data = Shapes10::new(Split::Test, 600, 0);
    let ids: Vec<u64> = (0..BATCH as u64)
        .map(|i| number * BATCH as u64 + i)
        .collect();
    data.batch(&ids).unwrap().samples
}

#[test]
fn a_closed_gate_answers_as_the_source_and_learns_nothing() {
    let source = Source::of("ttac");
    let anchors = calibrated(&source, true);
    let mut gated = session(&source, &anchors);
    let plain = Session::builder(&source.model)
        .method("test")
        .build()
        .unwrap();
    let before = gated.model();
    for number in 0..20 {
        let answer = gated.observe(&batch(number)).unwrap();
        let expected = plain.predict(&batch(number)).unwrap();
        assert_eq!(answer.probabilities, expected.probabilities);
        assert_eq!(answer.learned.updates, 0);
        assert_eq!(answer.gate.map(|verdict| verdict.open), Some(false));
    }
    assert!(gated.source_answers());
    assert_eq!(tensors(&before.network), tensors(&gated.model().network));
    let predictor = gated.predictor();
    let expected = plain.predict(&batch(3)).unwrap();
    assert_eq!(
        predictor.predict(&batch(3)).unwrap().probabilities,
        expected.probabilities
    );
}

#[test]
fn an_alarm_opens_the_gate_and_the_batch_is_learned_from() {
    let source = Source::of("ttac");
    let anchors = calibrated(&source, false);
    let mut gated = session(&source, &anchors);
    let mut opened = None;
    for number in 0..20 {
        let answer = gated.observe(&batch(number)).unwrap();
        let verdict = answer.gate.unwrap();
        assert_eq!(verdict.open, answer.learned.updates > 0, "batch {number}");
        opened = opened.or(verdict.opened.map(|_| number));
    }
    // Every payoff is nearly one, so the evidence doubles or more with every image.
    assert!(opened.unwrap() <= 2, "{opened:?}");
    assert!(!gated.source_answers());
    gated.reset();
    assert!(gated.source_answers());
    let again = gated.observe(&batch(0)).unwrap();
    let fresh = session(&source, &anchors).observe(&batch(0)).unwrap();
    assert_eq!(again.probabilities, fresh.probabilities);
}

#[test]
fn a_saved_session_with_a_gate_goes_on_with_the_same_bits() {
    let source = Source::of("ttac");
    let anchors = calibrated(&source, false);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session.safetensors");
    for stop in [1, 5] {
        let mut whole = session(&source, &anchors);
        for number in 0..stop {
            whole.observe(&batch(number)).unwrap();
        }
        whole.save(&path).unwrap();
        let mut loaded = Session::load(&path, &source.model, Some(&anchors)).unwrap();
        for number in stop..stop + 3 {
            let [expected, found] =
                [&mut whole, &mut loaded].map(|one| one.observe(&batch(number)).unwrap());
            assert_eq!(
                expected.probabilities, found.probabilities,
                "batch {number}"
            );
            assert_eq!(expected.gate, found.gate);
        }
    }
}

#[test]
fn recommended_learns_saves_and_does_not_depend_on_threads_with_every_method() {
    let source = Source::of("ttac");
    let anchors = calibrated(&source, false);
    for name in ["bn", "tent", "eta", "shot", "ttac", "ttac+shot"] {
        let session = || {
            let builder = Session::builder(&source.model)
                .anchors(&anchors)
                .protocol(&protocol(false))
                .preset(name, Preset::Recommended)
                .shares(Some(SharesConfig {
                    window: 12,
                    memory: 48.0,
                    least: 0.0,
                    full: 0.01,
                    ..SharesConfig::default()
                }));
            let builder = match name {
                "eta" => builder
                    .set("entropy_margin", 2.0)
                    .set("similarity_threshold", 2.0),
                "shot" => builder.set("confidence_threshold", 0.0),
                "bn" | "tent" => builder,
                _ => builder
                    .set("filter.posterior_threshold", 0.0)
                    .set("gate.visits", 1.0),
            };
            builder.build().unwrap()
        };
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().unwrap().install(|| {
                let mut session = session();
                let answers = (0..5).map(|number| {
                    if number == 3 {
                        // The session goes on from its state.
                        let state = session.state().unwrap();
                        session.reset();
                        session.observe(&batch(7)).unwrap();
                        session.restore(&state).unwrap();
                    }
                    session.observe(&batch(number)).unwrap()
                });
                let answers: Vec<_> = answers.collect();
                let learned: usize = answers.iter().map(|answer| answer.learned.updates).sum();
                assert_eq!(learned > 0, name != "bn", "{name}");
                answers
                    .into_iter()
                    .flat_map(|answer| answer.probabilities)
                    .collect::<Vec<f32>>()
            })
        };
        let one = run(1);
        assert!(one.iter().all(|value| value.is_finite()), "{name}");
        assert_eq!(one, run(2), "{name}");
        let mut whole = session();
        let plain = (0..5).flat_map(|number| whole.observe(&batch(number)).unwrap().probabilities);
        assert_eq!(one, plain.collect::<Vec<f32>>(), "{name}");
    }
}

#[test]
fn nothing_is_learned_from_answers_that_recent_shares_corrected() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/shapes10");
    let model = Model::load(&shipped.join("model.safetensors"), &Device::flex()).unwrap();
    let anchors = SourceStatistics::load(&shipped.join("anchors.safetensors")).unwrap();
    let options = OpenOptions::new(32).with_corruption("contrast", 5);
    let data = open("shapes10", &shipped, Split::Test, &options).unwrap();
    let labels = data.known_labels().unwrap();
    let of_one = (0..labels.len() as u64).filter(|&id| labels[id as usize] == 3);
    // Mixed classes, then a run.
    let ids: Vec<u64> = (0..96).chain(of_one.skip(20).take(48)).collect();
    let with = |shares| {
        let mut session = Session::builder(&model)
            .anchors(&anchors)
            .protocol(&protocol(false))
            .preset("ttac", Preset::Recommended)
            .set("filter.posterior_threshold", 0.0)
            .set("gate.visits", 1.0)
            .gate(None)
            .shares(shares)
            .build()
            .unwrap();
        let mut classes = Vec::new();
        for ids in ids.chunks(2 * BATCH) {
            let samples = data.batch(ids).unwrap().samples;
            classes.extend(session.observe(&samples).unwrap().classes);
        }
        (tensors(&session.model().network), classes)
    };
    let shares = SharesConfig {
        window: 2 * BATCH,
        ..SharesConfig::default()
    };
    let (plain, plain_answers) = with(None);
    let (corrected, corrected_answers) = with(Some(shares));
    assert_ne!(plain_answers, corrected_answers);
    assert_eq!(plain, corrected);
}

#[test]
fn a_small_batch_takes_a_step_that_is_shorter_in_proportion() {
    let source = Source::of("ttac");
    let moved = |method: &str, full_step: f64| {
        let mut session = Session::builder(&source.model)
            .anchors(&source.anchors)
            .protocol(&protocol(false))
            .preset(method, Preset::Recommended)
            .set("filter.posterior_threshold", 0.0)
            .set("gate.visits", 1.0)
            .set("full_step", full_step)
            // Every gradient is cut to the bound, so that a step is as long as the rate says.
            .set("gradient_bound", 1e-4)
            .set("brake", serde_json::Value::Null)
            .gate(None)
            .build()
            .unwrap();
        session.observe(&batch(0)).unwrap();
        session.drift().unwrap()
    };
    // With TTAC++ a pass has two copies of each sample, and the batch is no larger for it.
    for method in ["ttac", "ttac++"] {
        let (full, quarter) = (
            moved(method, BATCH as f64),
            moved(method, 4.0 * BATCH as f64),
        );
        // Both steps go the same way; parameters of about one are stored to seven digits, and a step moves the fifth.
        let times = full / quarter;
        assert!((times - 4.0).abs() < 0.1, "{method}: {full} and {quarter}");
        assert!((moved(method, 1.0) - full).abs() <= 1e-9 * full, "{method}");
    }
}

#[test]
fn anchors_without_a_calibration_leave_the_gate_off_and_say_so() {
    let source = Source::of("ttac");
    let anchors = SourceStatistics {
        norms: None,
        calibration: None,
        ..source.anchors.clone()
    };
    let mut session = session(&source, &anchors);
    assert_eq!(session.protocol().gate, None);
    let warnings = session.warnings().join("\n");
    assert!(warnings.contains("no calibration"), "{warnings}");
    assert!(warnings.contains("no reference moments"), "{warnings}");
    assert!(session.observe(&batch(0)).unwrap().learned.updates > 0);
}

#[test]
fn a_gate_has_no_place_in_many_passes() {
    let protocol = ttac::protocol::Protocol {
        passes: ttac::protocol::Passes::Many {
            epochs: 2,
            selection: ttac::protocol::Selection::Last,
        },
        gate: Some(GateConfig::default()),
        ..ttac::protocol::Protocol::default()
    };
    let problem = protocol.validate().unwrap_err().to_string();
    assert!(problem.contains("no gate"), "{problem}");
}

#[test]
fn anchors_keep_reference_and_calibration_in_their_file() {
    let source = Source::of("ttac");
    let anchors = calibrated(&source, true);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("anchors.safetensors");
    anchors.save(&path).unwrap();
    let loaded = SourceStatistics::load(&path).unwrap();
    let [read, written] = [&loaded, &anchors].map(|one| one.calibration.as_ref().unwrap());
    for (read, written) in read.measures.iter().zip(&written.measures) {
        assert_eq!(read.score, written.score);
        assert_eq!(read.scores, written.scores);
        assert_eq!(read.pooled, written.pooled);
        // The header is JSON, whose reader may miss the last bit.
        assert!((read.limit - written.limit).abs() < 1e-15);
    }
    assert_eq!(read.measures.len(), 3);
    let (loaded, saved) = (loaded.norms.unwrap(), anchors.norms.unwrap());
    assert_eq!(loaded.shares, saved.shares);
    for (loaded, saved) in loaded.layers.iter().zip(&saved.layers) {
        assert_eq!(loaded.keys, saved.keys);
        for (loaded, saved) in loaded.means.iter().zip(&saved.means) {
            // The file keeps single precision.
            assert!(
                (loaded - saved).abs() <= 1e-7 * saved.abs(),
                "{loaded} {saved}"
            );
        }
    }
}

#[test]
fn norms_follow_images_while_classes_are_mixed_and_classes_while_they_come_in_runs() {
    let (name, architecture) = families().swap_remove(0);
    let (network, images) = network_and_images(&architecture);
    let reference = reference(&network, &images, &[0, 1, 2, 3, 4, 0]);
    let followed = |rule, constants, labels: &[usize]| {
        let mut following = Following::new(&network, &reference, rule, constants, None);
        following.begin(labels.to_vec());
        let scores = network.forward(images.clone(), NormMode::Ruled(&following));
        following.finish();
        values(&scores)
    };
    let by_class = (16.0, 200.0);
    let mixed = [0, 1, 2, 3, 4, 0];
    // The constants of pooled statistics beside those of classes.
    let pooled = followed(NormFollow::Images, (64.0, 1024.0), &mixed);
    assert_eq!(
        followed(NormFollow::Auto, by_class, &mixed),
        pooled,
        "{name}"
    );
    let run = [2; 6];
    let classes = followed(NormFollow::Classes, by_class, &run);
    assert_eq!(
        followed(NormFollow::Auto, by_class, &run),
        classes,
        "{name}"
    );
    assert_ne!(classes, followed(NormFollow::Images, (64.0, 1024.0), &run));
}

#[test]
fn the_brake_draws_back_by_the_drift() {
    let (_, architecture) = families().swap_remove(0);
    let (source, images) = network_and_images(&architecture);
    let stepped = |brake| {
        let config = LearnerConfig {
            brake,
            ..LearnerConfig::stepping(OptimiserConfig::SGD, 0.1)
        };
        let mut learner = Learner::new(source.clone(), config);
        let features = learner.features(images.clone());
        learner.step(&features.powi_scalar(2).sum());
        learner
    };
    let free = stepped(None);
    assert!(free.drift() > 0.0);
    let braked = stepped(Some(2.0));
    let share = 2.0 * free.drift();
    assert!(share < 1.0, "the step is short enough to tell: {share}");
    let expected = (1.0 - share) * free.drift();
    // Parameters are rounded once more on their way back.
    assert!((braked.drift() / expected - 1.0).abs() < 1e-3);
    let stopped = stepped(Some(1e9));
    assert_eq!(stopped.drift(), 0.0, "a share is at most the whole way");
}
